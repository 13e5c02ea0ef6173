"""Kill the coordinator that holds all roles while clients submit to it and to a second one on the same database."""

from collections.abc import Callable

import anyio
import httpx
import pytest

from common.address_book import AddressBook
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.faults.load import Load, submissions
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import environment

pytestmark = pytest.mark.anyio

CLIENTS, JOBS_EACH = 6, 5


@pytest.mark.long
async def test_follower_takes_over_within_10_s_under_load(
    world: World,
    database_url: str,
    book: AddressBook,
    party_at: Callable[[DevWallet, httpx.AsyncClient], Party],
) -> None:
    settings = environment(world, database_url)
    async with (
        running(settings, pick_free(), pick_free()) as leader,  # it is ready, so its index runs and it holds the role
        running(settings, pick_free(), pick_free()) as other,
        httpx.AsyncClient(base_url=other.base_url, trust_env=False, timeout=30) as http,
    ):
        bodies = await submissions(party_at(world.wallets.with_role("client")[0], http), CLIENTS * JOBS_EACH)
        load = Load([leader.base_url, other.base_url])
        async with anyio.create_task_group() as clients:
            for n in range(CLIENTS):
                clients.start_soon(load.submit, bodies[n::CLIENTS], n)
            await load.until_posted(3)
            leader.process.kill()
            leader.process.wait()
            before = len(load.posted)
            with anyio.fail_after(10):
                await load.until_posted(before + 1)
            with anyio.fail_after(60):
                await load.until_posted(len(bodies))
        assert before < len(bodies) - CLIENTS  # the kill came during the load
        assert load.unspecified() == []
        assert await all_violations(database_url, world.anvil.rpc_url, book, promised=load.posted) == []
