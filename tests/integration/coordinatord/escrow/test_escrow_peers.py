"""Run two coordinators like operators do: as separate processes with separate sockets, over one database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from common.box import PublicKey
from common.domains import Domains
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.book.test_polls import poll
from tests.integration.coordinatord.scene.escrows import MOCK, OPERATOR_KEY, allow, claimed, code, opened, released
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import Coordinator, running, start
from tests.integration.coordinatord.scene.stage import configured, environment

pytestmark = pytest.mark.anyio

PAYLOAD = b"sealed to the escrow"


@asynccontextmanager
async def instance(
    world: World, database_url: str, port: int, **settings: object
) -> AsyncIterator[tuple[Coordinator, httpx.AsyncClient]]:
    variables = environment(world, database_url, **MOCK, PEER_SYNC_S=5, **settings)
    async with (
        running(variables, port, pick_free()) as coordinator,
        httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
    ):
        yield coordinator, http


async def key_of(http: httpx.AsyncClient) -> PublicKey:
    return PublicKey(bytes.fromhex((await http.get("/key")).json()["escrow_public_key"]))


@pytest.mark.long
async def test_keys_survive_while_one_instance_lives(world: World, database_url: str) -> None:
    await allow(world)
    book = configured(world, database_url).addresses
    wallets = world.wallets.with_role("client")[0], world.wallets.with_role("provider")[0]
    ports = pick_free(), pick_free()
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    async with instance(world, database_url, ports[1], PEER_URL=urls[0]) as (_, second):
        # No peer is running yet to pull keys from.
        assert code(await second.get("/key")) == (503, "escrow_key_unminted")
        client, provider = (
            Party(wallet_of(wallet), Domains.of(book), book.job_registry, second, wallet.box_key) for wallet in wallets
        )
        await provider.sign_in("provider")
        async with instance(world, database_url, ports[0]) as (_, first):
            key = await key_of(first)
            with anyio.fail_after(60):
                while (await second.get("/key")).status_code != 200:  # noqa: ASYNC110 - it pulls when it likes
                    await anyio.sleep(0.05)
            assert await key_of(second) == key
            container = client.container(PAYLOAD, key)
            job = await claimed(client, provider, container)
            left_open = (await client.post(container=client.container(PAYLOAD, key)))["job_id"]
        # The first was killed. It returns as a joining instance, and listens only after it has the keys.
        async with instance(world, database_url, ports[0], PEER_URL=urls[1], PEER_REQUIRED="true") as (_, first):
            assert await key_of(first) == key
            assert opened(await released(first, provider, job, container), container) == PAYLOAD
            assert opened(await released(second, provider, job, container), container) == PAYLOAD
            assert left_open in await poll(provider, "state=Open&model=1&free=5")
    async with instance(world, database_url, ports[0]) as (_, alone):
        provider.http = alone
        assert await key_of(alone) != key
        assert code(await released(alone, provider, job, container)) == (410, "escrow_key_lost")
        assert await poll(provider, "state=Open&model=1&free=5") == []


async def test_instance_does_not_start_if_its_first_pull_is_refused(world: World, database_url: str) -> None:
    async with instance(world, database_url, pick_free()) as (holder, _):  # which finds no entry in the allowlist
        joining = environment(world, database_url, **MOCK, PEER_URL=holder.base_url, PEER_REQUIRED=1)
        process = start(joining | {"PORT": str(pick_free()), "METRICS_PORT": str(pick_free())}, errors=-1)
        with anyio.fail_after(60):
            _, errors = await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == 1
    assert b"PEER_REQUIRED: the peer answers 403 not_allowlisted" in errors
    assert OPERATOR_KEY.encode() not in errors
