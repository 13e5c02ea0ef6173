"""The hub delivers events to followers. A follower that returns gets all missed events or a reset."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from common.api.events import OUTCOME_BY_EVENT, EventKind
from coordinatord.api.events.events_sql import EventFilter, LoggedEvent
from coordinatord.api.events.hub import EventHub
from coordinatord.api.events.listeners import MAX_EVENTS_PER_PIECE, Listener
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.notices import INDEX_MOVED, Notices

pytestmark = pytest.mark.anyio


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
