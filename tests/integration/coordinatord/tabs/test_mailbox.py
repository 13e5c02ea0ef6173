"""Mailbox of tabs: parties, delivery, bounds and ends, with one coordinator and with two over one database."""

import secrets
from collections.abc import AsyncIterator, Callable

import anyio
import attrs
import httpx
import pytest

from common.api.tabs import MAX_TAB_FRAME_BYTES, MAX_TAB_FRAMES_PER_POST, MAX_TAB_POST_BYTES, MAX_TAB_WAITING_FRAMES
from common.scalars import base64_of
from coordinatord.api.tabs import routes
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage, configured, staged, until
from tests.integration.coordinatord.scene.streams import Stream, Streams, streams_of
from tests.integration.coordinatord.scene.tabs import POST, path_of, post

NO_JOB = "0x" + "12" * 32


@pytest.fixture
async def job(client: Party, provider: Party) -> str:
    """A claimed job of the client. Both parties are signed in."""
    await client.sign_in()
    job: str = (await client.post(designated=1))["job_id"]
    assert (await provider.run(provider.claim(job))).status_code == 201
    return job


@attrs.frozen
class Elsewhere:
    """Another coordinator over the same database."""

    http: httpx.AsyncClient
    streams: Streams
    stop: Callable[[], None]


@pytest.fixture
async def elsewhere(stage: Stage, world: World, database_url: str) -> AsyncIterator[Elsewhere]:
    async with (
        staged(world, configured(world, database_url), []) as other,
        streams_of(other, []) as streams,
    ):
        yield Elsewhere(other.http, streams, other.ground.events.close)


@pytest.fixture
async def strangers(stranger: Party, rival: Party) -> tuple[Party, Party]:
    """A signed-in client and a signed-in provider without this tab."""
    await stranger.sign_in()
    return stranger, rival


async def read(stream: Stream, count: int) -> list[str]:
    messages = [await stream.next() for _ in range(count)]
    assert {message.name for message in messages} == {"frame"}
    return [message.data for message in messages]


async def registered(stage: Stage, readers: int) -> None:
    with anyio.fail_after(30):
        while await stage.fetchval("select count(*) from tab_readers") != readers:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.01)


@shows("POST /v1/tabs/messages", 200)
@shows("GET /v1/tabs/{job_id}/messages", 200)
async def test_frames_reach_the_other_side_in_order(
    client: Party, provider: Party, job: str, streams: Streams, stage: Stage
) -> None:
    large = [secrets.token_bytes(MAX_TAB_FRAME_BYTES) for _ in range(20)]  # more than one delivery
    small = [bytes((n,)) * 40 for n in range(100)]
    assert await post(client, job, [b"early"]) == []
    async with (
        streams.open(path_of(job), client.authorization) as owners,
        streams.open(path_of(job), provider.authorization) as providers,
    ):
        assert await read(providers, 1) == [base64_of(b"early")]
        assert await post(provider, job, large) == []
        assert await post(provider, job, small) == []
        assert await read(owners, 120) == [base64_of(frame) for frame in large + small]
        assert await post(client, job, small[:2]) == []
        assert await read(providers, 2) == [base64_of(frame) for frame in small[:2]]
    assert await stage.fetchval("select count(*) from tab_frames") == 0


@shows("GET /v1/tabs/{job_id}/messages", 400, "invalid_request_error")
@shows("GET /v1/tabs/{job_id}/messages", 403, "not_party")
@shows("GET /v1/tabs/{job_id}/messages", 404, "unknown_job")
async def test_only_parties_of_the_claimed_job_read_and_post(
    client: Party, strangers: tuple[Party, Party], job: str, streams: Streams
) -> None:
    stranger, rival = strangers
    for path, party, status in (
        (path_of(job), stranger, 403),
        (path_of(job), rival, 403),
        (path_of(NO_JOB), client, 404),
        (path_of("0x12"), client, 400),
    ):
        async with streams.open(path, party.authorization) as refused:
            assert refused.response.status_code == status
    for party in strangers:
        assert await post(party, job, [b"frame"]) == [{"job_id": job, "code": "not_party"}]
    assert await post(client, NO_JOB, [b"frame"]) == [{"job_id": NO_JOB, "code": "unknown_job"}]


@shows("GET /v1/tabs/{job_id}/messages", 409, "not_claimed")
async def test_tab_begins_with_the_claim_and_ends_with_the_job(
    client: Party, provider: Party, rival: Party, streams: Streams
) -> None:
    await client.sign_in()
    job = (await client.post(designated=1))["job_id"]
    for party, status in ((client, 409), (provider, 409), (rival, 403)):
        async with streams.open(path_of(job), party.authorization) as refused:
            assert refused.response.status_code == status
    assert await post(client, job, [b"frame"]) == [{"job_id": job, "code": "not_claimed"}]
    await provider.run(provider.claim(job))
    await until(lambda: client.http.get(f"/evm/jobs/{job}"), 200)
    async with (
        streams.open(path_of(job), client.authorization) as owners,
        streams.open(path_of(job), provider.authorization) as providers,
    ):
        await provider.run(provider.settle(job, result=base64_of(b"sealed result")))
        for stream in (owners, providers):
            assert (await stream.next()).name == "end"
            assert await stream.ended() == ""
    async with streams.open(path_of(job), client.authorization) as refused:
        assert refused.response.status_code == 409
    assert await post(provider, job, [b"frame"]) == [{"job_id": job, "code": "not_claimed"}]


@pytest.mark.parametrize(
    "reorg", ["update jobs set state = 0, provider_id = 0", "delete from jobs"], ids=["claim", "post"]
)
async def test_removed_claim_closes_streams_without_an_end(
    client: Party, job: str, streams: Streams, stage: Stage, reorg: str
) -> None:
    async with streams.open(path_of(job), client.authorization) as owners:
        await owners.block()
        await stage.execute(reorg)
        await stage.execute(
            "insert into events (kind, block_number, block_time, job_id, provider_id, state, takes_back)"
            " select kind, block_number, block_time, job_id, provider_id, state, id from events where kind = 1"
        )
        rest = await owners.ended()
        assert "event: end" not in rest
        assert "removed the claim" in rest


async def test_newer_reader_replaces_the_older(
    client: Party, provider: Party, job: str, streams: Streams, elsewhere: Elsewhere
) -> None:
    """The second reader is at the same coordinator, the third at another one."""
    async with (
        streams.open(path_of(job), client.authorization) as first,
        streams.open(path_of(job), client.authorization) as second,
    ):
        assert "a newer stream" in await first.ended()
        await post(provider, job, [b"for the second"])
        assert await read(second, 1) == [base64_of(b"for the second")]
        async with elsewhere.streams.open(path_of(job), client.authorization) as third:
            assert "a newer stream" in await second.ended()
            await post(provider, job, [b"here"])
            await post(provider, job, [b"there"], elsewhere.http)
            assert await read(third, 2) == [base64_of(b"here"), base64_of(b"there")]


async def test_frames_wait_while_a_coordinator_stops(
    client: Party, provider: Party, job: str, stage: Stage, elsewhere: Elsewhere
) -> None:
    async with elsewhere.streams.open(path_of(job), client.authorization) as first:
        await first.block()
        elsewhere.stop()
        assert "this process stops" in await first.ended()
    await post(provider, job, [b"later"], elsewhere.http)
    async with streams_of(stage, []) as streams, streams.open(path_of(job), client.authorization) as second:
        assert await read(second, 1) == [base64_of(b"later")]


@shows("POST /v1/tabs/messages", 400, "invalid_request_error")
@shows("POST /v1/tabs/messages", 413, "body_too_large")
async def test_malformed_posts_are_refused(client: Party) -> None:
    await client.sign_in()
    frame = {"job_id": NO_JOB, "body": base64_of(b"frame")}
    for body in (
        {"messages": []},
        {"messages": [frame] * (MAX_TAB_FRAMES_PER_POST + 1)},
        {"messages": [frame | {"body": base64_of(bytes(MAX_TAB_FRAME_BYTES + 1))}]},
        {"messages": [frame | {"body": "a"}]},
    ):
        assert (await client.http.post(POST, json=body, headers=client.authorization)).status_code == 400
    long = await client.http.post(POST, content=b" " * (MAX_TAB_POST_BYTES + 1), headers=client.authorization)
    assert long.status_code == 413


async def test_full_mailbox_refuses_a_post_as_a_whole(
    client: Party, provider: Party, job: str, streams: Streams, stage: Stage
) -> None:
    posts = MAX_TAB_WAITING_FRAMES // MAX_TAB_FRAMES_PER_POST
    full = [{"job_id": job, "code": "mailbox_full"}]
    for _ in range(posts):
        assert await post(provider, job, [b"frame"] * MAX_TAB_FRAMES_PER_POST) == []
    assert await post(provider, job, [b"over"] * MAX_TAB_FRAMES_PER_POST) == full
    assert await post(provider, job, [b"over"]) == full
    assert await post(client, job, [b"other direction"]) == []
    async with streams.open(path_of(job), client.authorization) as owners:
        await read(owners, MAX_TAB_WAITING_FRAMES)
        assert await post(provider, job, [b"again"]) == []
        assert await read(owners, 1) == [base64_of(b"again")]
    large = [bytes(MAX_TAB_FRAME_BYTES)] * 32  # two megabytes, and a third more in base64
    assert await post(client, job, large) == []
    assert await post(client, job, large) == full
    assert await stage.fetchval("select sum(bytes) < 4 * 1024 * 1024 from tab_frames") is True


async def test_small_posts_are_counted_now_and_then(client: Party, provider: Party, job: str, stage: Stage) -> None:
    await stage.execute(
        "insert into tab_frames (job_id, to_owner, frames, bytes, events) values ($1, true, $2, 1, '')",
        bytes.fromhex(job[2:]),
        MAX_TAB_WAITING_FRAMES - 1,
    )
    assert await post(provider, job, [b"frame"]) == []
    eighth = MAX_TAB_WAITING_FRAMES // 8
    assert await post(provider, job, [b"frame"] * eighth) == []
    assert await post(provider, job, [b"frame"]) == [{"job_id": job, "code": "mailbox_full"}]


async def test_frames_that_waited_too_long_are_not_delivered(
    client: Party, provider: Party, job: str, streams: Streams, stage: Stage
) -> None:
    await post(provider, job, [b"old"] * MAX_TAB_FRAMES_PER_POST)
    await stage.execute("update tab_frames set frames = 1024, sent_at = sent_at - interval '61 seconds'")
    assert await post(provider, job, [b"new"]) == []  # the old ones do not fill the mailbox
    async with streams.open(path_of(job), client.authorization) as owners:
        assert await read(owners, 1) == [base64_of(b"new")]


async def test_streams_continue_after_the_tables_were_emptied(
    client: Party, provider: Party, job: str, streams: Streams, stage: Stage
) -> None:
    async with streams.open(path_of(job), client.authorization) as owners:
        await registered(stage, 1)
        await stage.execute("truncate tab_frames, tab_readers")
        await registered(stage, 1)
        await post(provider, job, [b"frame"])
        assert await read(owners, 1) == [base64_of(b"frame")]


async def test_sweep_removes_readers_of_ended_jobs(
    client: Party, provider: Party, job: str, streams: Streams, stage: Stage
) -> None:
    async with streams.open(path_of(job), client.authorization) as owners:
        await registered(stage, 1)
        await stage.sweep()
        assert await stage.fetchval("select count(*) from tab_readers") == 1
        await provider.run(provider.fail(job))
        assert (await owners.next()).name == "end"
        await stage.sweep()
        assert await stage.fetchval("select count(*) from tab_readers") == 0


@shows("POST /v1/tabs/messages", 503, "not_ready")
@shows("GET /v1/tabs/{job_id}/messages", 503, "not_ready")
async def test_rebuilt_index_defers_new_tabs(client: Party, stage: Stage, streams: Streams) -> None:
    await client.sign_in()
    await stage.execute("update index_position set rebuilding = true")
    body = {"messages": [{"job_id": NO_JOB, "body": base64_of(b"frame")}]}
    assert (await client.http.post(POST, json=body, headers=client.authorization)).status_code == 503
    async with streams.open(path_of(NO_JOB), client.authorization) as refused:
        assert refused.response.status_code == 503
    await stage.execute("update index_position set rebuilding = false")


@pytest.fixture
def limited_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WALLET_FRAMES_PER_S", 4)
    monkeypatch.setattr(routes, "TAB_FRAMES_PER_S", 2)


@shows("POST /v1/tabs/messages", 429, "busy")
@shows("GET /v1/tabs/{job_id}/messages", 429, "busy")
@pytest.mark.usefixtures("limited_rates")
@pytest.mark.parametrize("stage_settings", [{"event_listeners_per_caller": 0}], ids=["limited"])
async def test_tabs_wallets_and_callers_have_limits(client: Party, provider: Party, job: str, streams: Streams) -> None:
    assert await post(provider, job, [b"frame"] * 5) == [{"job_id": job, "code": "mailbox_full"}]
    body = {"messages": [{"job_id": job, "body": base64_of(b"frame")}] * 9}
    busy = await provider.http.post(POST, json=body, headers=provider.authorization)
    assert (busy.status_code, busy.headers["x-svc-retryable"]) == (429, "true")
    assert await post(client, job, [b"frame"] * 4) == []
    async with streams.open(path_of(job), client.authorization) as refused:
        assert refused.response.status_code == 429
