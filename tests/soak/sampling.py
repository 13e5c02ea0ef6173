"""Every event that was ever on the chain."""

from collections import Counter
from contextlib import suppress
from typing import Final

import anyio
import attrs
import httpx

from tests.soak.ground import Ground
from tests.support.invariants.market_log import MarketLog, Told, read_market_log

_HISTORY_EVERY_S: Final = 15.0
DEEPEST_REORG_BLOCKS: Final = 128


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
