"""The real daemon from start to shutdown, with a real coordinator."""

import signal

import httpx
import pytest

from common.scalars import hex_of
from tests.integration.promtool import PROMTOOL, promtool
from tests.integration.svcd.daemon.scene import Scene, terminated, until


async def test_jobs_are_settled_and_shutdown_withdraws_asks(scene: Scene) -> None:
    checked = await scene.run("check")
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    assert "WRONG" not in checked.stdout
    for line in ("configuration", "coordinator", "clock", "domains", "session", "listed", "box key", "gateway"):
        assert f"\nright    {line}" in f"\n{checked.stdout}"
    identity = await scene.run("identity")
    assert (identity.returncode, identity.stderr) == (0, "")
    assert hex_of(scene.world.wallets.demo_provider.box_key) in identity.stdout
    base = f"http://127.0.0.1:{scene.metrics_port}"
    async with httpx.AsyncClient(base_url=base, trust_env=False) as daemon:
        with scene.daemon() as process:
            for designated in (True, False):
                row = await scene.ended(await scene.post(designated=designated))
                assert row["status"] == "completed", scene.log
                assert (await scene.opened(row)).output == {"input": "word"}
                assert row["svc"]["completion_tok"] == "3"
            health, metrics = await daemon.get("/healthz"), (await daemon.get("/metrics")).text
            assert (health.status_code, health.text) == (200, "ok\n")
            assert "\nsvcd_jobs_settled_total 2.0\n" in metrics
            assert '\nsvcd_jobs_failed_total{reason="sla_abandon"} 0.0\n' in metrics
            if PROMTOOL is not None:
                assert promtool("check", "metrics", stdin=metrics.encode()) == ""
            status = await scene.run("status")
            assert status.returncode == 0
            assert "journal: settled" in status.stdout
            assert await terminated(process) == 0
    assert await asks(scene) == []
    assert (await scene.run("status")).returncode == 1  # it has stopped


@pytest.mark.long
async def test_second_signal_exits_at_once_and_restart_resumes(scene: Scene) -> None:
    (scene.directory / "hang").touch()
    with scene.daemon() as process:
        job = await scene.post("hang")

        async def runs() -> bool:
            return (scene.directory / "reached").exists()

        await until(runs)
        process.send_signal(signal.SIGTERM)

        async def stopping() -> bool:
            return '"event": "stopping"' in scene.log

        await until(stopping)
        assert process.poll() is None
        assert await terminated(process) == 1
    (scene.directory / "hang").unlink()
    with scene.daemon():
        assert (await scene.ended(job))["status"] == "completed"


@pytest.mark.long
async def test_foreign_coordinator_is_refused_before_signing(scene: Scene) -> None:
    addresses = scene.directory / "addresses.json"
    addresses.write_text(addresses.read_text().replace('"chainId": 31337', '"chainId": 1'))
    checked = await scene.run("check")
    assert checked.returncode == 1
    assert "WRONG    domains" in checked.stdout
    run = await scene.run("run")
    assert run.returncode == 1
    error = run.stderr.splitlines()[-1]
    assert "serves another deployment than addresses_file: chain id: expected 1, reported 31337" in error


async def asks(scene: Scene) -> list[object]:
    answer = await scene.client.http.get("/evm/asks")
    listed: list[object] = answer.json()["asks"]
    return listed
