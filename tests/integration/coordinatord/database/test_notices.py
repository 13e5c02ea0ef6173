import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from coordinatord.storage.database import notices
from coordinatord.storage.database.connections import Database, open_database
from coordinatord.storage.database.notices import (
    BATCH_MOVED,
    INDEX_MOVED,
    RELAY_ENDED,
    RELAY_QUEUED,
    RESET,
    Notices,
    notify_outbox,
)

pytestmark = pytest.mark.anyio

# Idle listeners between two heartbeats. A process stopped inside a statement may hold a lock that all need.
_RESTING_LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    " and query = 'select 1' and state = 'idle' and clock_timestamp() - state_change < interval '0.3 s'"
)


@contextmanager
def silenced(pid: int) -> Iterator[None]:
    """Stop the server's side of a connection from answering, without an error."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _listener(database: Database) -> int:
    async with database.connection() as connection:
        while not (pids := await connection.fetch(_RESTING_LISTENERS)):  # noqa: ASYNC110 - the event is in another process
            await anyio.sleep(0.02)
        return int(pids[0]["pid"])


async def test_listening_connection_that_fell_silent_is_replaced(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "HEARTBEAT_TIMEOUT_S", 1)
    heard = anyio.Event()
    listening = Notices(heartbeat_s=1)
    async with (
        open_database(database_url, max_size=2) as database,
        anyio.create_task_group() as tasks,
        listening.subscribe(INDEX_MOVED, lambda payload: heard.set() if payload != RESET else None),
    ):
        tasks.start_soon(listening.listen, database)
        with anyio.fail_after(60), silenced(await _listener(database)):
            while not heard.is_set():
                async with database.connection() as connection:
                    await connection.execute("select pg_notify($1, '1')", INDEX_MOVED)
                with anyio.move_on_after(0.2):
                    await heard.wait()
        tasks.cancel_scope.cancel()


async def test_topics_get_entries_in_order_and_a_reset_on_connect(database_url: str) -> None:
    listening = Notices()
    told, arrived = anyio.create_memory_object_stream[tuple[str, str]](100)
    async with (
        told,
        arrived,
        open_database(database_url, max_size=2) as database,
        anyio.create_task_group() as tasks,
    ):
        for topic in (INDEX_MOVED, RELAY_QUEUED, RELAY_ENDED, BATCH_MOVED):
            listening.subscribe_always(topic, lambda payload, topic=topic: told.send_nowait((topic, payload)))

        async def next_entries(count: int) -> list[tuple[str, str]]:
            with anyio.fail_after(30):
                return [await arrived.receive() for _ in range(count)]

        tasks.start_soon(listening.listen, database)
        resets = [(topic, RESET) for topic in (INDEX_MOVED, RELAY_QUEUED, RELAY_ENDED, BATCH_MOVED)]
        assert await next_entries(4) == resets
        async with database.connection() as connection:
            await notify_outbox(connection, RELAY_QUEUED)
            await notify_outbox(connection, "of another release", "1")
            await notify_outbox(connection, RELAY_ENDED, "7")
            await connection.execute("select pg_notify($1, '41')", INDEX_MOVED)
            assert await next_entries(3) == [(RELAY_QUEUED, ""), (RELAY_ENDED, "7"), (INDEX_MOVED, "41")]
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid()"
            )
        assert await next_entries(4) == resets
        tasks.cancel_scope.cancel()
