"""I8: one nonce, used at two coordinators over one database at the same time."""

from collections.abc import Callable

import anyio
import httpx
import pytest

from devnet.accounts import DevWallet
from devnet.world import World
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.stage import configured, staged

pytestmark = pytest.mark.anyio


async def test_nonce_used_at_two_coordinators_opens_one_session(
    world: World, database_url: str, party_at: Callable[[DevWallet, httpx.AsyncClient], Party]
) -> None:
    config = configured(world, database_url)
    async with staged(world, config, []) as one, staged(world, config, []) as other:
        client = party_at(world.wallets.with_role("client")[0], one.http)
        bodies = [await client.session_body() for _ in range(8)]
        answers: list[tuple[str, int]] = []

        async def use(http: httpx.AsyncClient, body: Body) -> None:
            answer = await http.post("/auth/session", json=body)
            if answer.status_code != 200:
                assert answer.json()["error"]["param"] == "nonce"
            answers.append((body["nonce"], answer.status_code))

        async with anyio.create_task_group() as users:
            for body in bodies:
                for http in (one.http, other.http, one.http, other.http):
                    users.start_soon(use, http, body)
        assert sorted(answers) == sorted((b["nonce"], status) for b in bodies for status in (200, 400, 400, 400))
        assert await one.fetchval("select count(*) from sessions") == len(bodies)
