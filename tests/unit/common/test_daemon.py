import asyncio
import json
import math
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import sentry_sdk
import trio
import trio.testing
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport
from structlog.testing import capture_logs
from trio.testing import MockClock

from common.daemon.logs import log_task_failure, start_error_reporting
from common.daemon.process import Fatal
from common.daemon.supervision import FAILING_AFTER_FAILURES, HEALTHY_AFTER_S, MAX_BACKOFF_S, Supervisor

_DSN = "http://key@127.0.0.1:9/1"


class RecordingTransport(Transport):
    """Sentry transport that records events instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture
def transport() -> Iterator[RecordingTransport]:
    yield RecordingTransport()
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def test_failure_report_has_tags_and_no_variables(transport: RecordingTransport) -> None:
    report = start_error_reporting(_DSN, "staging", "1.2.3", transport)
    body = secrets.token_hex(16)
    try:
        raise RuntimeError("unexpected")
    except RuntimeError:
        report(None, "exception", {"event": "request failed", "exc_info": True, "body": body})
    (event,) = transport.events
    assert (event["environment"], event["release"]) == ("staging", "1.2.3")
    assert event["exception"]["values"][0]["value"] == "unexpected"
    assert body not in json.dumps(event, default=str)
    assert "request" not in event
    assert "user" not in event


def test_logs_below_error_are_not_reported(transport: RecordingTransport) -> None:
    report = start_error_reporting(_DSN, None, None, transport)
    report(None, "info", {"event": "serving", "exc_info": True})
    assert report(None, "error", {"event": "said"}) == {"event": "said"}
    assert transport.events == []


def test_missing_package_stops_the_boot_naming_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with pytest.raises(Fatal, match=r"\[sentry\]"):
        start_error_reporting(_DSN, None, None)


def test_invalid_dsn_stops_the_boot() -> None:
    with pytest.raises(Fatal, match="SENTRY_DSN"):
        start_error_reporting("nowhere", None, None)


def test_log_that_cannot_be_written_does_not_raise() -> None:
    """The stream raises, as on a full disk."""
    program = """
import logging, structlog
from common.daemon.logs import set_up_logging
set_up_logging("info")
for number in range(1000):
    structlog.get_logger().info("written", number=number)
    logging.getLogger("library").warning("written")
print("alive")
"""
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=False)
    assert run.stdout == b"alive\n"


# Run without root, and try to read the environment of the parent from a child.
LOOKS = """
import ctypes, os
from common.daemon.secrets import hide_memory
def readable():
    parent, child = os.getpid(), os.fork()
    if child == 0:
        try:
            os._exit(0 if open(f"/proc/{parent}/environ").read() else 1)
        except PermissionError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as it is in a process that was no other user's
print(readable(), hide_memory(), readable())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_hidden_memory_is_unreadable_to_the_same_user() -> None:
    ended = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("True True False\n", "")


def failing_for(times: float, error: Callable[[], Exception]) -> Callable[[], Awaitable[int]]:
    """Return a loop that raises `times` times, and then returns its number of runs."""
    runs = 0

    async def loop() -> int:
        nonlocal runs
        runs += 1
        if runs <= times:
            raise error()
        return runs

    return loop


@pytest.fixture
def counted() -> Counter[str]:
    return Counter()


@pytest.fixture
def supervisor(counted: Counter[str]) -> Supervisor:
    return Supervisor(lambda task, number: counted.update({task: number}), log_task_failure)


@pytest.mark.trio
async def test_failed_task_is_logged_counted_and_restarted(
    supervisor: Supervisor, counted: Counter[str], autojump_clock: MockClock
) -> None:
    with capture_logs() as logs:
        assert await supervisor.run("indexer", failing_for(3, lambda: ValueError("0xzz"))) == 4
    assert counted == {"indexer": 3}
    assert [(entry["event"], entry["task"], entry["failures_in_a_row"]) for entry in logs] == [
        ("task failed", "indexer", number) for number in (1, 2, 3)
    ]
    assert str(logs[0]["exc_info"]) == "0xzz"


@pytest.mark.trio
async def test_task_in_good_order_has_a_series_at_zero(supervisor: Supervisor, counted: Counter[str]) -> None:
    await supervisor.run("janitor", failing_for(0, ValueError))
    assert counted == {"janitor": 0}


@pytest.mark.trio
async def test_backoff_is_at_most_thirty_seconds(supervisor: Supervisor, autojump_clock: MockClock) -> None:
    pauses: list[float] = []
    last = -math.inf

    async def loop() -> None:
        nonlocal last
        pauses.append(trio.current_time() - last)
        last = trio.current_time()
        if len(pauses) < 60:
            raise OSError

    await supervisor.run("relayer", loop)
    assert max(pauses[1:]) <= MAX_BACKOFF_S
    assert max(pauses[30:]) > MAX_BACKOFF_S / 2
    assert len(set(pauses[30:])) > 10  # jitter: processes that fail together must not retry together


@pytest.mark.parametrize(
    "error",
    [lambda: Fatal("chainId"), lambda: ExceptionGroup("", [KeyError(), ExceptionGroup("", [Fatal("chainId")])])],
    ids=["alone", "in_a_group"],
)
@pytest.mark.trio
async def test_fatal_ends_the_task(supervisor: Supervisor, error: Callable[[], Exception]) -> None:
    with pytest.raises((Fatal, ExceptionGroup)):
        await supervisor.run("relayer", failing_for(math.inf, error))


@pytest.mark.trio
async def test_ten_failures_in_a_row_are_reported_until_it_recovers(
    supervisor: Supervisor, autojump_clock: MockClock
) -> None:
    runs = 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        assert supervisor.failing_task == ("events" if runs > FAILING_AFTER_FAILURES else None)
        if runs <= FAILING_AFTER_FAILURES:
            raise KeyError
        await trio.sleep(HEALTHY_AFTER_S + 1)
        assert supervisor.failing_task is None

    await supervisor.run("events", loop)
    assert runs == FAILING_AFTER_FAILURES + 1


@pytest.mark.trio
async def test_failures_a_minute_apart_are_no_row(supervisor: Supervisor, autojump_clock: MockClock) -> None:
    runs = 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        await trio.sleep(HEALTHY_AFTER_S + 1)
        assert supervisor.failing_task is None
        if runs <= 2 * FAILING_AFTER_FAILURES:
            raise KeyError

    await supervisor.run("events", loop)


@pytest.mark.trio
async def test_failure_during_cancellation_is_logged(supervisor: Supervisor, counted: Counter[str]) -> None:
    """A child task raises during shutdown. The error must not end the daemon with a traceback."""

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("too late")

    async def loop() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await trio.sleep_forever()

    with capture_logs() as logs:
        async with trio.open_nursery() as daemon:
            daemon.start_soon(supervisor.run, "batches", loop)
            await trio.testing.wait_all_tasks_blocked()
            daemon.cancel_scope.cancel()
    assert counted == {"batches": 1}
    assert [entry["event"] for entry in logs] == ["task failed"]


@pytest.mark.trio
async def test_work_that_runs_once_is_not_restarted(supervisor: Supervisor, counted: Counter[str]) -> None:
    await supervisor.run_once("purchase", failing_for(1, ValueError))
    assert counted == {"purchase": 1}


@pytest.mark.parametrize("leaks", ["alone", "with_an_error"])
def test_leaked_cancellation_restarts_the_task(leaks: str) -> None:
    """asyncio cannot tell who cancelled a task. A CancelledError that leaks from a library must not end the task
    silently."""
    counted = Counter[str]()
    supervisor = Supervisor(lambda task, number: counted.update({task: number}), log_task_failure)
    runs = 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            cancelled = asyncio.CancelledError()
            raise cancelled if leaks == "alone" else BaseExceptionGroup("", [cancelled, ValueError()])

    anyio.run(supervisor.run, "notices", loop)
    assert (runs, counted) == (2, {"notices": 1})
