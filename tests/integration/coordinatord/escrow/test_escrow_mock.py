from collections.abc import AsyncIterator

import pytest

from coordinatord.api.escrow.generations import RETENTION_MS
from devnet.world import World
from tests.integration.coordinatord.book.test_polls import poll
from tests.integration.coordinatord.scene.escrows import (
    HOUR,
    MOCK,
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
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, staged

pytestmark = pytest.mark.anyio

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


async def test_peer_holds_what_the_first_instance_minted(
    stage: Stage, peer: Stage, client: Party, provider: Party
) -> None:
    key = await announced(stage)
    assert await announced(peer) == key
    container = client.container(PAYLOAD, key)
    job = await claimed(client, provider, container)
    for instance in (stage, peer):
        assert opened(await released(instance.http, provider, job, container), container) == PAYLOAD


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
        domains, registry = stage.ground.domains, config.addresses.job_registry
        client, provider = (
            Party(wallet_of(wallet), domains, registry, stage.http, wallet.box_key)
            for wallet in (world.wallets.with_role("client")[0], world.wallets.with_role("provider")[0])
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
