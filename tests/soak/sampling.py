"""Sample every daemon once a second: its metrics and its use of the machine."""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import attrs
import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.invariants.market_log import MarketLog, read_market_log
from tests.soak.daemon import Daemon
from tests.soak.ground import Ground
from tests.soak.plain_http import plain_http
from tests.soak.timeline import Reading, Timeline

EVERY: Final = 1.0
_HISTORY_EVERY: Final = 15.0  # seconds
# Plotted series, summed over their labels, by their name in the report.
_SERIES: Final = {
    "coordinatord_relay_queue_depth": "queue",
    "coordinatord_index_lag_blocks": "lag",
    "svcd_jobs_settled_total": "settled",
    "svcd_capacity_free": "free",
}


async def sample_until_cancelled(ground: Ground, timeline: Timeline) -> None:
    async with plain_http(timeout=2) as client:
        while True:
            async with anyio.create_task_group() as reads:
                for daemon in ground.daemons:
                    reads.start_soon(_read, client, ground, daemon, timeline)
            await anyio.sleep(EVERY)


async def _read(client: httpx.AsyncClient, ground: Ground, daemon: Daemon, timeline: Timeline) -> None:
    values: dict[str, float] = {}
    if (memory := _resident_mib(daemon.pid)) is not None:
        values["memory"] = memory
    try:
        told = (await client.get(ground.metrics_urls[daemon.name])).text
    except httpx.TransportError:
        told = ""  # the daemon is down or stopping
    for family in text_string_to_metric_families(told):
        for sample in family.samples:
            if sample.name in _SERIES:
                name = _SERIES[sample.name]
                values[name] = values.get(name, 0.0) + sample.value
    timeline.readings.append(Reading(daemon.name, timeline.now, values))


@attrs.define
class ChainHistory:
    """All events that were ever on the chain, including those that a reorg removed."""

    _seen: set[tuple[str, str, str]] = attrs.field(factory=set)  # name, transaction, values

    def add(self, log: MarketLog) -> None:
        self._seen.update((event.name, event.transaction, repr(event.values)) for event in log.events)

    def counts(self) -> Counter[str]:
        return Counter(name for name, _, _ in self._seen)

    async def watch(self, ground: Ground) -> None:
        """Record events until cancelled."""
        while True:
            with suppress(RuntimeError, httpx.HTTPError, LookupError, TypeError):  # a block may vanish
                self.add(await read_market_log(ground.anvil.rpc_url, ground.book))
            await anyio.sleep(_HISTORY_EVERY)


def _resident_mib(pid: int | None) -> float | None:
    if pid is None:
        return None
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    lines = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(lines[0].split()[1]) / 1024 if lines else None
