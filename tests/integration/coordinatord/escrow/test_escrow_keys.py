"""Keys of development escrows: rotation, loss, records, and instances that pull keys from each other."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import asyncpg
import httpx
import pytest

from common.box import PublicKey
from coordinatord.api.escrow import escrow_sql
from coordinatord.api.escrow.escrow_sql import GenerationRow
from coordinatord.api.escrow.generations import RETENTION_MS
from coordinatord.storage.database.migration import migrate
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.book.test_polls import poll
from tests.integration.coordinatord.scene.escrows import (
    HOUR,
    MOCK,
    OPERATOR_KEY,
    Clock,
    allow,
    announced,
    claimed,
    code,
    custody_of,
    mock_escrow,
    opened,
    released,
)
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.running import Coordinator, running, start
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, environment, staged

FIRST, SECOND, THIRD = (GenerationRow(bytes([n]) * 32, 1000 * n) for n in (1, 2, 3))
NOW = 10_000
EVERYTHING = 2**63 - 1

Connection = asyncpg.Connection


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    await migrate(connection)
    yield connection
    await connection.close()


async def announce(connection: Connection, *rows: GenerationRow) -> None:
    """Announce each key at a block of a hundred times its number."""
    await escrow_sql.record_keys(connection, rows)
    for row in rows:
        await escrow_sql.mark_announced(connection, row.public_key, 100 * row.public_key[0])


async def custody_began(connection: Connection) -> int:
    began: int = await connection.fetchval("select began from escrow_custody")
    assert await escrow_sql.has_lost_keys(connection) == (began >= 0)
    return began


async def test_without_a_loss_custody_has_no_beginning(connection: Connection) -> None:
    await announce(connection, FIRST, SECOND)
    assert await escrow_sql.mark_lost(connection, [FIRST.public_key, SECOND.public_key], NOW) == []
    assert await custody_began(connection) == -1


async def test_custody_begins_at_the_first_key_after_the_latest_loss(
    connection: Connection,
) -> None:
    await announce(connection, FIRST, SECOND, THIRD)
    assert await escrow_sql.mark_lost(connection, [FIRST.public_key, THIRD.public_key], NOW) == [SECOND.public_key]
    assert await custody_began(connection) == 300, "the first is held, and what came between was lost"


async def test_custody_waits_for_a_key_after_the_loss(connection: Connection) -> None:
    await announce(connection, FIRST)
    await escrow_sql.record_keys(connection, [SECOND])
    await escrow_sql.mark_lost(connection, [SECOND.public_key], NOW)
    assert await custody_began(connection) == EVERYTHING
    await escrow_sql.mark_announced(connection, SECOND.public_key, 150)
    await escrow_sql.mark_announced(connection, SECOND.public_key, 999)  # by another instance, later
    assert await custody_began(connection) == 150


async def test_key_that_was_never_announced_is_no_loss(connection: Connection) -> None:
    await announce(connection, FIRST)
    await escrow_sql.record_keys(connection, [SECOND])
    assert await escrow_sql.mark_lost(connection, [FIRST.public_key], SECOND.announced_from - 1) == []
    assert await custody_began(connection) == -1


async def test_key_that_an_instance_holds_after_all_is_not_lost(connection: Connection) -> None:
    await announce(connection, FIRST, SECOND)
    await escrow_sql.mark_lost(connection, [SECOND.public_key], NOW)
    await escrow_sql.record_keys(connection, [FIRST])
    assert await custody_began(connection) == -1


async def test_erased_key_is_lost_only_when_it_was_erased_too_early(connection: Connection) -> None:
    await announce(connection, FIRST, SECOND, THIRD)
    await escrow_sql.mark_erased(connection, FIRST.public_key, too_early=False)
    assert await escrow_sql.mark_lost(connection, [SECOND.public_key, THIRD.public_key], NOW) == []
    assert await custody_began(connection) == -1
    await escrow_sql.mark_erased(connection, SECOND.public_key, too_early=True)
    assert await custody_began(connection) == 300


async def test_loss_is_forgotten_once_no_old_job_can_be_claimed(connection: Connection) -> None:
    await announce(connection, FIRST, SECOND)
    await escrow_sql.mark_lost(connection, [SECOND.public_key], NOW)
    await connection.execute("update escrow_generations set lost_at = lost_at - interval '48 hours'")
    await escrow_sql.delete_old_records(connection)
    assert await custody_began(connection) == 200
    await connection.execute("update escrow_generations set lost_at = lost_at - interval '2 hours'")
    assert await custody_began(connection) == -1
    await escrow_sql.delete_old_records(connection)
    assert [row["public_key"] for row in await connection.fetch("select public_key from escrow_generations")] == [
        SECOND.public_key
    ]


OPEN = "state=Open&model=1&free=10"
PAYLOAD = b"sealed to the escrow"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def stage(world: World, database_url: str, seen: list[Seen], clock: Clock) -> AsyncIterator[Stage]:
    """An escrow instance without a peer, which generates all its keys."""
    await allow(world)
    config = configured(world, database_url, **MOCK)
    async with staged(world, config, seen, make_escrow=mock_escrow(clock)) as stage:
        yield stage


@pytest.fixture
async def peer(stage: Stage, world: World, seen: list[Seen], clock: Clock) -> AsyncIterator[Stage]:
    """Another process of the same deployment, which pulls from the first."""
    made = mock_escrow(clock, stage.application)
    async with staged(world, stage.ground.config, seen, relayer=False, make_escrow=made) as peer:
        yield peer


async def test_rotation_leaves_open_jobs_openable_everywhere(
    stage: Stage, peer: Stage, client: Party, provider: Party, clock: Clock
) -> None:
    first = await announced(stage)
    before = client.container(PAYLOAD, first)
    job = (await client.post(container=before))["job_id"]

    clock.ahead = 51 * 60
    await custody_of(stage).rotate()
    assert await announced(stage) == first, "the next generation is minted before its time"
    await custody_of(peer).pull_keys()
    clock.ahead = HOUR + 1
    second = await announced(stage)
    assert second != first
    assert await announced(peer) == second
    await custody_of(stage).sweep()

    assert (await provider.run(provider.claim(job))).status_code == 201
    after = client.container(PAYLOAD, second)
    later = await claimed(client, provider, after)
    for instance in (stage, peer):
        assert opened(await released(instance.http, provider, job, before), before) == PAYLOAD
        assert opened(await released(instance.http, provider, later, after), after) == PAYLOAD


async def test_peer_pulls_missed_rotation_before_rejecting_a_job(
    stage: Stage, peer: Stage, client: Party, provider: Party, clock: Clock
) -> None:
    clock.ahead = 2 * HOUR
    await custody_of(stage).rotate()
    container = client.container(PAYLOAD, await announced(stage))
    job = await claimed(client, provider, container)
    assert opened(await released(peer.http, provider, job, container), container) == PAYLOAD
    assert await announced(peer) == await announced(stage)


async def test_peer_mints_when_its_source_has_no_successor_key(stage: Stage, peer: Stage, clock: Clock) -> None:
    first = await announced(peer)
    clock.ahead = HOUR - 60
    await custody_of(peer).rotate()
    assert len(custody_of(peer).held_generations()) == 1, "it is the source's turn"
    clock.ahead = HOUR + 60
    await custody_of(peer).rotate()
    assert await announced(peer) != first


async def test_generation_is_erased_after_its_retention(
    stage: Stage, client: Party, provider: Party, clock: Clock
) -> None:
    container = client.container(PAYLOAD, await announced(stage))
    job = await claimed(client, provider, container)
    old = custody_of(stage).held_generations()[0]
    clock.ahead = HOUR
    await custody_of(stage).rotate()
    clock.ahead = HOUR + RETENTION_MS / 1000 - 60
    await custody_of(stage).sweep()
    assert opened(await released(stage.http, provider, job, container), container) == PAYLOAD
    clock.ahead = HOUR + RETENTION_MS / 1000 + 60
    await custody_of(stage).sweep()
    assert old.key.copy_secret() == bytes(32)
    assert code(await released(stage.http, provider, job, container)) == (400, "unseal_failed")


@shows("POST /release", 410, "escrow_key_lost")
async def test_jobs_sealed_to_a_lost_key_are_not_leased(
    world: World, stage: Stage, client: Party, provider: Party, seen: list[Seen]
) -> None:
    key = await announced(stage)
    container = client.container(PAYLOAD, key)
    lost_and_claimed = await claimed(client, provider, container)
    lost_and_leased = (await client.post(container=client.container(PAYLOAD, key)))["job_id"]
    designated = (await client.post(designated=1))["job_id"]
    assert set(await poll(provider, OPEN)) == {lost_and_leased, designated}
    async with staged(
        world, stage.ground.config, seen, relayer=False, make_escrow=mock_escrow(Clock())
    ) as restarted:  # no instance holds the keys
        provider.http, client.http = restarted.http, restarted.http
        assert await poll(provider, OPEN) == [designated]
        assert code(await released(restarted.http, provider, lost_and_claimed, container)) == (410, "escrow_key_lost")
        fresh = client.container(PAYLOAD, await announced(restarted))
        job = (await client.post(container=fresh))["job_id"]
        assert await poll(provider, OPEN) == [designated, job]
        assert (await provider.run(provider.claim(job))).status_code == 201
        assert opened(await released(restarted.http, provider, job, fresh), fresh) == PAYLOAD

        await custody_of(stage).sweep()  # an instance that still holds the key reports this
        assert lost_and_leased in await poll(provider, OPEN)


async def test_key_erased_by_a_clock_that_runs_ahead_is_a_lost_one(
    world: World, database_url: str, seen: list[Seen], clock: Clock
) -> None:
    made = mock_escrow(clock, clock_offset_ms=RETENTION_MS + 1000)
    config = configured(world, database_url, **MOCK)
    async with staged(world, config, seen, make_escrow=made) as stage:
        client, provider = (
            Party.at(world.wallets.with_role(role)[0], config.addresses, stage.http) for role in ("client", "provider")
        )
        await provider.sign_in("provider")
        first = await announced(stage)
        old = client.container(PAYLOAD, first)
        before = (await client.post(container=old))["job_id"]
        clock.ahead = HOUR
        await custody_of(stage).rotate()
        between = (await client.post(container=client.container(PAYLOAD, await announced(stage))))["job_id"]
        await custody_of(stage).sweep()
        assert await poll(provider, OPEN) == [between]
        assert (await provider.run(provider.claim(before))).status_code == 201
        assert code(await released(stage.http, provider, before, old)) == (410, "escrow_key_lost")


@shows("POST /release", 503, "escrow_key_unminted")
async def test_instance_that_waits_for_its_keys_releases_later(
    world: World, stage: Stage, client: Party, provider: Party, seen: list[Seen]
) -> None:
    container = client.container(PAYLOAD, await announced(stage))
    job = await claimed(client, provider, container)
    config = configured(world, stage.ground.config.database_url.reveal(), **MOCK, PEER_URL="http://127.0.0.1:1")
    async with staged(world, config, seen, relayer=False) as joining:
        answer = await released(joining.http, provider, job, container)
        assert (code(answer), answer.headers["x-svc-retryable"]) == ((503, "escrow_key_unminted"), "true")


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
        client, provider = (Party.at(wallet, book, second) for wallet in wallets)
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
