"""promtool reads the metrics of both running daemons."""

from collections.abc import Callable
from pathlib import Path

import httpx

from devnet.app import run_devnet
from devnet.settings import DevnetSettings
from tests.integration.promtool import promtool


async def test_prometheus_accepts_the_metrics_of_running_daemons(tmp_path: Path, held: Callable[[str], None]) -> None:
    async with (
        run_devnet(DevnetSettings(state_dir=tmp_path / "devnet"), lambda _: None) as up,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        for path in ("/v1/models", "/evm/jobs", "/no/such/route"):
            await http.get(f"{up.coordinator.base_url}{path}")
        found = [(await http.get(url)).content for url in (up.coordinator.metrics_url, up.provider.metrics_url)]
    series = [sum(not line.startswith(b"#") for line in served.splitlines()) for served in found]
    for served in found:
        assert promtool("check", "metrics", stdin=served) == ""
        twice = served + b"# TYPE again counter\nagain 1\n"
        assert "again" in promtool("check", "metrics", stdin=twice)
    held(f"{series[0]} series of a running coordinatord, {series[1]} of a running svcd; rules, alerts, dashboards")
