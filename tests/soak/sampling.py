"""Sample every process: metrics of the daemons, and use of the machine."""

from collections import Counter
from contextlib import suppress
from typing import Final

import anyio
import attrs
import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.soak.ground import Ground
from tests.soak.plain_http import plain_http
from tests.soak.resources import pids, use_of
from tests.soak.timeline import Timeline
from tests.support.invariants.market_log import MarketLog, Told, read_market_log

_EVERY_S: Final = 5.0
_HISTORY_EVERY_S: Final = 15.0
DEEPEST_REORG_BLOCKS: Final = 128
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
            for name, pid in pids(ground).items():
                if (use := use_of(pid)) is not None:
                    timeline.read(name, {"memory": use.memory_mib, "descriptors": use.descriptors})
            async with anyio.create_task_group() as reads:
                for name, url in ground.metrics_urls.items():
                    reads.start_soon(_read, client, name, url, timeline)
            await anyio.sleep(_EVERY_S)


async def _read(client: httpx.AsyncClient, name: str, url: str, timeline: Timeline) -> None:
    values: dict[str, float] = {}
    try:
        told = (await client.get(url)).text
    except httpx.TransportError:
        return  # the daemon is down or stopping
    for family in text_string_to_metric_families(told):
        for sample in family.samples:
            if sample.name in _SERIES:
                figure = _SERIES[sample.name]
                values[figure] = values.get(figure, 0.0) + sample.value
    timeline.read(name, values)


@attrs.define
class ChainHistory:
    """Count all events that were ever on the chain, including events that a reorg removed."""

    counts: Counter[str] = attrs.field(factory=Counter)
    _counted: dict[tuple[str, str, str], int] = attrs.field(factory=dict)  # name, transaction, values: block
    _head: int = 0

    def add(self, log: MarketLog) -> None:
        for event in log.events:
            self._add(event)
        self._head = max(self._head, log.head)
        oldest = self._head - 2 * DEEPEST_REORG_BLOCKS
        self._counted = {event: block for event, block in self._counted.items() if block > oldest}

    def _add(self, event: Told) -> None:
        key = event.name, event.transaction, repr(event.values)
        if key not in self._counted:
            self.counts[event.name] += 1
        self._counted[key] = event.block

    async def watch(self, ground: Ground) -> None:
        """Record events until cancelled."""
        while True:
            with suppress(RuntimeError, httpx.HTTPError, LookupError, TypeError):  # a block may vanish
                await self.catch_up(ground)
            await anyio.sleep(_HISTORY_EVERY_S)

    async def catch_up(self, ground: Ground) -> None:
        since = max(ground.book.deploy_block, self._head - DEEPEST_REORG_BLOCKS)
        self.add(await read_market_log(ground.anvil.rpc_url, ground.book, since))
