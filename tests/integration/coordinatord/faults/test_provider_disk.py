"""The disk of svcd's state folder is full while jobs are posted, claimed and settled."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from common.address_book import AddressBook
from devnet.world import World
from tests.integration.coordinatord.faults.trading import RECOVERY_S, PartyAt, TradingMarket, trading, until
from tests.support.faults.full_disk import full_disk

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@pytest.mark.long
async def test_full_disk_is_survived_and_reported(
    world: World, book: AddressBook, party_at: PartyAt, tmp_path: Path, database_url: str
) -> None:
    """The log cannot be written either."""
    async with trading(world, book, party_at, tmp_path, database_url) as market:

        @asynccontextmanager
        async def full() -> AsyncIterator[None]:
            with full_disk(market.provider.pid):
                with anyio.fail_after(10):
                    await until(lambda: names_the_journal(market))
                yield

        await market.survive(full(), code=None)
        with anyio.fail_after(RECOVERY_S):
            await until(market.provider_is_healthy)


async def names_the_journal(market: TradingMarket) -> bool:
    answer = await market.http.get(market.providers_health_url)
    return answer.status_code == 503 and "journal" in answer.headers["x-svcd-reason"]
