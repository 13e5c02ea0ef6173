"""Events: the hub that delivers them to followers, and streams as clients see them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from common.api.events import OUTCOME_BY_EVENT, EventKind
from common.scalars import base64_of
from coordinatord.api.events.events_sql import EventFilter, LoggedEvent
from coordinatord.api.events.hub import EventHub
from coordinatord.api.events.listeners import MAX_EVENTS_PER_PIECE, Listener
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import INDEX_MOVED, Notices
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.faults import unreachable
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage, until
from tests.integration.coordinatord.scene.streams import Streams


async def append(database: Database, *jobs: int, model: int = 1, kind: EventKind = EventKind.POSTED) -> list[int]:
    """Append events of this many jobs. Return their ids."""
    async with database.connection() as connection, connection.transaction():
        if kind is EventKind.RESET:
            rows = await connection.fetch(
                "insert into events (kind, block_number, block_time) values ($1, 1, 1) returning id", int(kind)
            )
        else:
            rows = await connection.fetch(
                "insert into events (kind, block_number, block_time, job_id, owner, model_id, provider_id, designated,"
                " state, ended_because) select $3, 1, 1, int4send(n), '\\xaa', $2, 0, 0, $4, $5"
                " from unnest($1::integer[]) n returning id",
                list(jobs),
                model,
                int(kind),
                *map(int, OUTCOME_BY_EVENT[kind]),
            )
        await connection.execute("select pg_notify($1, '1')", INDEX_MOVED)
    return [row["id"] for row in rows]


@asynccontextmanager
async def running(database: Database) -> AsyncIterator[EventHub]:
    notices = Notices()
    hub = EventHub(database, notices)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notices.listen, database)
        tasks.start_soon(hub.run)
        with anyio.fail_after(30):
            while not hub._recent:  # noqa: ASYNC110 - there is no event to wait for
                await anyio.sleep(0.01)
        yield hub
        tasks.cancel_scope.cancel()


async def heard(listener: Listener, many: int) -> list[LoggedEvent]:
    events: list[LoggedEvent] = []
    with anyio.fail_after(30):
        while len(events) < many:
            events += await listener.wait()
    return events


async def test_each_who_follows_hears_what_passes_its_filter_in_order(database: Database) -> None:
    async with running(database) as hub:
        async with (
            hub.follow(EventFilter(), None) as (all_, _),
            hub.follow(EventFilter(), None) as (twin, _),
            hub.follow(EventFilter(model_id=2), None) as (second, _),
            hub.follow(EventFilter(job_id=b"\0\0\0\3"), None) as (one, _),
        ):
            ids = await append(database, 1, 2) + await append(database, 3, model=2)
            assert [event.id for event in await heard(all_, 3)] == ids
            assert [event.id for event in await heard(twin, 3)] == ids
            assert [event.id for event in await heard(second, 1)] == ids[2:]
            assert [event.id for event in await heard(one, 1)] == ids[2:]
        assert not hub._topics


async def test_watchers_are_notified_before_listeners_and_on_close(database: Database) -> None:
    watched: list[int] = []
    async with running(database) as hub, hub.follow(EventFilter(), None) as (listener, _):
        hub.add_watcher(lambda events: watched.append(len(events)))
        await append(database, 1, 2)
        await heard(listener, 2)
        assert sum(watched) == 2
        hub.close()
        assert watched[-1] == 0
        assert not await listener.wait()
        assert listener.ended
        async with hub.follow(EventFilter(), None) as (late, _):
            assert late.ended


@pytest.mark.parametrize("kept", [10_000, 2])
async def test_client_resuming_at_another_process_gets_missed_events(
    database: Database, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Recent events come from memory, and older ones from the table."""
    monkeypatch.setattr("coordinatord.api.events.hub.MIN_KEPT_EVENTS", kept)
    async with running(database) as hub, hub.follow(EventFilter(), None) as (_, since):
        pass
    ids = await append(database, 1, 2, 3, 4) + await append(database, 5, model=2)
    async with running(database) as hub:
        async with hub.follow(EventFilter(model_id=1), since) as (listener, _):
            await append(database, 6)
            assert [event.id for event in await heard(listener, 5)][:4] == ids[:4]
        async with hub.follow(EventFilter(model_id=1), ids[2]) as (listener, _):
            assert [event.job_id for event in await heard(listener, 2)] == [b"\0\0\0\4", b"\0\0\0\6"]
        async with hub.follow(EventFilter(), hub.newest_id) as (listener, _):
            listener.wake()
            assert not await listener.wait()


@pytest.mark.parametrize("lost", ["pruned", "never", "too far"])
async def test_client_resuming_from_an_unknown_id_gets_a_reset(
    database: Database, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr("coordinatord.api.events.hub.MIN_KEPT_EVENTS", 2)
    first, *_ = await append(database, 1, 2, 3, 4, 5)
    if lost == "pruned":
        async with database.connection() as connection:
            await connection.execute("delete from events where id <= $1", first)
    if lost == "too far":
        monkeypatch.setattr("coordinatord.api.events.hub.MAX_REPLAY_IDS", 3)
    after = first + 1_000_000 if lost == "never" else first
    async with running(database) as hub, hub.follow(EventFilter(model_id=7), after) as (listener, _):
        (event,) = await heard(listener, 1)
        assert (event.kind, event.id) == (EventKind.RESET, hub.newest_id)


async def test_reset_among_missed_events_replaces_earlier_ones(database: Database) -> None:
    async with running(database) as hub:
        since = hub.newest_id
        async with hub.follow(EventFilter(), None) as (listener, _):
            await append(database, 1)
            await append(database, kind=EventKind.RESET)
            await append(database, 2)
            await heard(listener, 3)
        async with hub.follow(EventFilter(job_id=b"\0\0\0\1"), since) as (listener, _):
            assert [event.kind for event in await heard(listener, 1)] == [EventKind.RESET]


@pytest.mark.parametrize("kept", [10_000, 20])
async def test_replay_comes_in_pieces_each_in_its_turn(
    database: Database, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Events that arrive during the replay are delivered once, after the replay."""
    monkeypatch.setattr("coordinatord.api.events.hub.MIN_KEPT_EVENTS", kept)
    turns = anyio.Semaphore(0)
    before = await append(database, *range(3 * MAX_EVENTS_PER_PIECE))
    waiting = anyio.Event()

    async def turn() -> None:
        waiting.set()
        await turns.acquire()

    async with running(database) as hub, hub.follow(EventFilter(), before[0], turn) as (listener, _):
        assert [event.id for event in await listener.wait()] == before[1 : MAX_EVENTS_PER_PIECE + 1]
        rest: list[LoggedEvent] = []

        async def hear_rest() -> None:
            rest.extend(await heard(listener, len(before) - 1 - MAX_EVENTS_PER_PIECE + 2))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear_rest)
            await waiting.wait()
            meanwhile = await append(database, 1, 2)
            assert not rest, "the second piece waits for its turn"
            for _ in range(8):
                turns.release()
        assert [event.id for event in rest] == before[MAX_EVENTS_PER_PIECE + 1 :] + meanwhile
        later = await append(database, 3)
        assert [event.id for event in await heard(listener, 1)] == later


async def test_nothing_is_followed_before_the_log_was_read(database: Database) -> None:
    hub = EventHub(database, Notices())
    with pytest.raises(Retryable, match="not loaded yet"):
        async with hub.follow(EventFilter(), None):
            pass


async def test_each_listener_gets_a_heartbeat_once_in_a_while(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinatord.api.events.listeners.HEARTBEAT_INTERVAL_S", 0.1)
    async with (
        running(database) as hub,
        hub.follow(EventFilter(), None) as (one, _),
        hub.follow(EventFilter(model_id=1), None) as (other, _),
    ):
        with anyio.fail_after(30):
            for _ in range(2):
                for listener in (one, other):
                    assert not await listener.wait()
                    assert listener.is_idle


NO_JOB = "0x" + "12" * 32


@shows("GET /v1/jobs/{id}/events", 200)
@shows("GET /evm/events", 200)
async def test_stream_reports_a_jobs_life_and_resumes(client: Party, provider: Party, streams: Streams) -> None:
    job = (await client.post())["job_id"]
    of_job = f"/v1/jobs/{job}/events"
    async with streams.open(of_job) as followed, streams.open(f"/evm/events?owner={client.address}") as owned:
        assert followed.response.headers["content-type"] == "text/event-stream"
        assert followed.response.headers["x-accel-buffering"] == "no"
        began = await owned.block()  # the initial id, without an event
        assert (began.name, began.data) == ("", None)
        first = await followed.next()
        assert (first.name, first.data["status"], first.id) == ("posted", "queued", began.id)
        await provider.run(provider.claim(job))
        claimed = await followed.next()
        assert (claimed.name, claimed.data["status"], claimed.data["provider_id"]) == ("claimed", "in_progress", "1")
        assert await owned.next() == claimed
        row = (await client.http.get(f"/evm/jobs/{job}")).json()
        assert (row["state"], row["claimed_at"]) == (claimed.data["state"], claimed.data["block_time"])
    await provider.run(provider.settle(job, result=base64_of(b"sealed result")))
    for path, headers in (
        (of_job, {"last-event-id": first.id}),
        (f"{of_job}?after={first.id}", {}),
        ("/evm/events?provider=1&after=0", {"last-event-id": first.id}),
    ):
        async with streams.open(path, headers) as back:
            assert await back.next() == claimed
            assert ((settled := await back.next()).name, settled.data["status"]) == ("settled", "completed")
    async with streams.open(of_job) as late:
        assert ((present := await late.next()).name, present.data["ended_because"]) == ("settled", 1)


@shows("GET /v1/batches/{id}/events", 200)
async def test_batch_is_told_at_once_and_whenever_it_has_changed(
    batching: Batching, provider: Party, stage: Stage, streams: Streams
) -> None:
    (line,) = batching.submitter.lines(1)
    job = line["job_id"]
    batch = await batching.create(line)
    async with streams.open(f"/v1/batches/{batch['id']}/events", batching.owner.authorization) as followed:
        told = await followed.next()
        assert (told.name, told.data["id"]) == ("batch", batch["id"])
        while not told.data["request_counts"]["total"]:
            told = await followed.next()
        await until(lambda: stage.http.get(f"/v1/jobs/{job}"), 200)
        await provider.run(provider.claim(job))
        await provider.run(provider.settle(job, result=base64_of(b"sealed result")))
        while told.data["status"] != "completed":
            told = await followed.next()
        assert told.data["request_counts"] == {"completed": 1, "failed": 0, "total": 1}


@shows("GET /v1/jobs/{id}/events", 404, "not_found")
@shows("GET /v1/jobs/{id}/events", 400, "invalid_request_error")
@shows("GET /v1/batches/{id}/events", 404, "not_found")
@shows("GET /evm/events", 400, "invalid_request_error")
async def test_what_cannot_be_followed_is_refused_as_it_is_read(client: Party, streams: Streams) -> None:
    await client.sign_in()
    for path, headers, status in (
        (f"/v1/jobs/{NO_JOB}/events", {}, 404),
        ("/v1/jobs/0x12/events", {}, 400),
        (f"/v1/jobs/{NO_JOB}/events", {"last-event-id": "x"}, 400),
        ("/evm/events?after=-1", {}, 400),
        ("/evm/events?state=open", {}, 400),
        ("/v1/batches/none/events", client.authorization, 404),
    ):
        async with streams.open(path, headers) as refused:
            assert refused.response.status_code == status, path


async def test_streams_end_with_a_word_when_the_process_stops(stage: Stage, streams: Streams) -> None:
    async with streams.open("/evm/events") as followed:
        await followed.block()
        stage.ground.events.close()
        assert "this process stops: reconnect with Last-Event-ID" in await followed.ended()


async def test_stream_that_is_left_gives_its_place_back(stage: Stage, streams: Streams) -> None:
    async with streams.open("/evm/events") as followed:
        await followed.block()
        assert len(stage.ground.events._topics) == 1
    with anyio.fail_after(30):
        while stage.ground.events._topics:  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.01)


@shows("GET /v1/batches/{id}/events", 503, "not_ready")
async def test_nothing_is_followed_while_the_index_trails(client: Party, stage: Stage, streams: Streams) -> None:
    await client.sign_in()
    with stage.node.answering(unreachable):
        await until(lambda: stage.http.get("/readyz"), 503)
        async with streams.open("/v1/batches/none/events", client.authorization) as refused:
            assert refused.response.status_code == 503


@shows("GET /evm/events", 429, "busy")
@shows("GET /v1/jobs/{id}/events", 429, "busy")
@shows("GET /v1/batches/{id}/events", 429, "busy")
@pytest.mark.parametrize("stage_settings", [{"event_listeners_per_caller": 1, "event_listeners": 1}], ids=["limited"])
async def test_caller_beyond_its_limit_is_refused_without_waiting(
    batching: Batching, client: Party, provider: Party, streams: Streams
) -> None:
    job = (await client.post())["job_id"]
    batch = await batching.create(*batching.submitter.lines(1))
    async with streams.open("/evm/events") as followed:
        await followed.block()
        for path in ("/evm/events", f"/v1/jobs/{job}/events", f"/v1/batches/{batch['id']}/events"):
            async with streams.open(path, client.authorization) as refused:
                assert refused.response.status_code == 429
                assert refused.response.headers["x-svc-retryable"] == "true"
        with anyio.fail_after(10):
            polled = await streams.http.get(
                "/evm/jobs?state=Open&model=2&free=1&wait=30", headers=provider.authorization
            )
        assert polled.json()["jobs"] == []
