"""Idle connections take every file descriptor of a daemon, while jobs are posted, claimed and settled."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import pytest

from common.address_book import AddressBook
from devnet.world import World
from tests.integration.coordinatord.faults.trading import RECOVERY_S, PartyAt, TradingMarket, trading, until
from tests.support.faults.descriptors import idle_connections

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

_DESCRIPTORS: Final = 1024
_CONNECTIONS: Final = 1200


@pytest.fixture
async def trade(
    world: World, book: AddressBook, party_at: PartyAt, tmp_path: Path, database_url: str
) -> AsyncIterator[TradingMarket]:
    async with trading(world, book, party_at, tmp_path, database_url, descriptors=_DESCRIPTORS) as market:
        yield market


@asynccontextmanager
async def flooded(port: int) -> AsyncIterator[None]:
    with idle_connections(port, _CONNECTIONS):
        yield


@pytest.mark.long
async def test_idle_connections_to_coordinator_give_way(trade: TradingMarket) -> None:
    """It serves so few connections that it always has free descriptors."""

    @asynccontextmanager
    async def flooded_and_ready() -> AsyncIterator[None]:
        async with flooded(trade.coordinator.port):
            await anyio.sleep(1)
            posted = len(trade.load.posted)
            with anyio.fail_after(RECOVERY_S):
                await until(trade.is_ready)
                await trade.load.until_posted(posted + 1)
            yield

    await trade.survive(flooded_and_ready(), code=None)
    lines = [json.loads(line) for line in trade.coordinators_log.read_text().splitlines() if line.startswith("{")]
    (serving,) = [line for line in lines if line["event"] == "serving"]
    assert serving["connections"] < _DESCRIPTORS


@pytest.mark.long
async def test_idle_connections_to_coordinators_metrics_are_survived(trade: TradingMarket) -> None:
    await trade.survive(flooded(trade.coordinator.metrics_port), code=None)


@pytest.mark.long
async def test_idle_connections_to_providers_metrics_are_survived(trade: TradingMarket) -> None:
    await trade.survive(flooded(trade.providers_port), code=None)
    assert '"task failed"' not in trade.providers_log.read_text()
