"""The journal on a real disk, with real threads."""

import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from common.daemon.process import Fatal
from svcd.journal.book_row import Job
from svcd.journal.entries import JournalBinding
from svcd.journal.journal import Journal, is_daemon_running, open_journal
from svcd.journal.result_files import MAX_ROW_BYTES, ResultFiles
from tests.support.fakes.market import Market
from tests.unit.svcd.conftest import in_virtual_time

pytestmark = pytest.mark.trio


@attrs.define
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(directory: Path, clock: Clock | None = None) -> AsyncIterator[Journal]:
    async with open_journal(directory, clock or Clock()) as journal:
        yield journal


def a_job() -> Job:
    market = Market(Clock())
    return Job.read(market.jobs[market.post()])


async def test_journal_survives_a_restart_without_ended_jobs(tmp_path: Path) -> None:
    first, second, third = a_job(), a_job(), a_job()
    async with opened(tmp_path) as journal:
        for job in (first, second, third):
            await journal.record_claiming(job, "m")
        await journal.record_claimed(first.job_id)
        await journal.record_sealed(first.job_id, 5, b"result")
        await journal.record_failing(second.job_id, "undecryptable")
        await journal.record_end(third.job_id, "settled")
    async with opened(tmp_path) as journal:
        live = {entry.job: entry for entry in await journal.read_live_entries()}
        assert {job.job_id for job in live} == {first.job_id, second.job_id}
        assert (live[first].state, live[first].completion_tok, live[first].result_length) == ("sealed", 5, 6)
        assert (live[second].state, live[second].reason) == ("failing", "undecryptable")
        assert await journal.open_result(first.job_id) == b"result"
        assert await journal.find_unknown_jobs([first.job_id, third.job_id, b"n" * 32]) == {b"n" * 32}
        assert await journal.read_failed_ids() == set()


async def test_journal_of_another_wallet_or_market_is_refused(tmp_path: Path) -> None:
    home = JournalBinding(1, "0x01", "0xaa")
    async with opened(tmp_path) as journal:
        await journal.bind_to_market(home)
    for other in (
        JournalBinding(2, "0x01", "0xaa"),
        JournalBinding(1, "0x02", "0xaa"),
        JournalBinding(1, "0x01", "0xbb"),
    ):
        async with opened(tmp_path) as journal:
            with pytest.raises(Fatal, match=r"wallet 0xaa, not to chain .*: set another state_directory"):
                await journal.bind_to_market(other)
    async with opened(tmp_path) as journal:
        await journal.bind_to_market(home)


async def test_large_result_is_a_file_until_its_job_ends(tmp_path: Path) -> None:
    job, large = a_job(), b"x" * (MAX_ROW_BYTES + 1)
    async with opened(tmp_path) as journal:
        await journal.record_claiming(job, "m")
        await journal.record_sealed(job.job_id, 5, large)
    (tmp_path / "results" / "left-by-a-crash.partial").write_bytes(b"half")
    async with opened(tmp_path) as journal:
        assert len(list((tmp_path / "results").iterdir())) == 1
        content = await journal.open_result(job.job_id)
        assert not isinstance(content, bytes)
        with content:
            assert content.read() == large
        await journal.record_end(job.job_id, "settled")
        assert list((tmp_path / "results").iterdir()) == []


async def test_finished_job_is_not_reclaimed_but_failed_claim_is(tmp_path: Path) -> None:
    sealed, lost, taken = a_job(), a_job(), a_job()
    async with opened(tmp_path) as journal:
        for job in (sealed, lost, taken):
            assert await journal.record_claiming(job, "m")
        await journal.record_sealed(sealed.job_id, 5, b"result")
        await journal.record_end(lost.job_id, "not_claimed", "NotOpen")
        await journal.record_claimed(taken.job_id)
        assert [await journal.record_claiming(job, "m") for job in (sealed, lost, taken)] == [False, True, True]
        assert await journal.open_result(sealed.job_id) == b"result"
        assert [await journal.read_job_state(job.job_id) for job in (sealed, lost)] == ["sealed", "claiming"]


async def test_writers_at_once_share_commits(tmp_path: Path) -> None:
    jobs = [a_job() for _ in range(50)]
    async with opened(tmp_path) as journal:
        commits = 0

        def count(statement: str) -> None:
            nonlocal commits
            commits += statement == "commit"

        journal._connection.set_trace_callback(count)
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(journal.record_claiming, job, "m")
        journal._connection.set_trace_callback(None)
        assert len(await journal.read_live_entries()) == 50
    assert commits < 10


async def test_disk_that_refuses_is_waited_for_and_the_journal_says_so(tmp_path: Path) -> None:
    job = a_job()
    async with opened(tmp_path) as journal:
        full = sqlite3.connect(tmp_path / "journal.sqlite3", isolation_level=None)
        journal._connection.execute("pragma busy_timeout = 10")
        full.execute("begin immediate")  # blocks writes, like a full disk
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.record_claiming, job, "m")
            while journal.is_working:  # noqa: ASYNC110 - it is another thread that finds out
                await trio.sleep(0.01)
            full.execute("rollback")
            full.close()
        assert journal.is_working
        assert len(await journal.read_live_entries()) == 1


async def test_wrong_entry_fails_only_its_writer(tmp_path: Path) -> None:
    jobs, refused = [a_job() for _ in range(3)], []

    async def write_wrong_value() -> None:
        try:
            await journal.store_value("name", "no number")  # type: ignore[arg-type]
        except sqlite3.IntegrityError as error:
            refused.append(error)

    async with opened(tmp_path) as journal:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery, journal._lock:  # the writes share a commit
                for job in jobs:
                    nursery.start_soon(journal.record_claiming, job, "m")
                await wait_all_tasks_blocked()
                nursery.start_soon(write_wrong_value)
                await wait_all_tasks_blocked()
        assert len(refused) == 1
        assert len(await journal.read_live_entries()) == 3


async def test_ended_jobs_are_forgotten_when_irrelevant(tmp_path: Path) -> None:
    clock, ended, live = Clock(), a_job(), a_job()
    async with opened(tmp_path, clock) as journal:
        for job in (ended, live):
            await journal.record_claiming(job, "m")
        await journal.record_end(ended.job_id, "failed", "undecryptable")
        assert await journal.read_failed_ids() == {ended.job_id}
    clock.now += 4 * 86_400
    async with opened(tmp_path, clock) as journal:
        assert await journal.find_unknown_jobs([ended.job_id, live.job_id]) == {ended.job_id}


@in_virtual_time
async def test_a_daemon_that_runs_for_long_forgets_as_well(tmp_path: Path) -> None:
    clock, ended = Clock(), a_job()
    async with opened(tmp_path, clock) as journal, trio.open_nursery() as nursery:
        await journal.record_claiming(ended, "m")
        await journal.record_end(ended.job_id, "failed", "undecryptable")
        nursery.start_soon(journal.run_cleanup)
        clock.now += 4 * 86_400
        await trio.sleep(4000)
        assert await journal.read_job_state(ended.job_id) is None
        nursery.cancel_scope.cancel()


def as_newer(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(b"not a database" * 100), "cannot be used: file is not a database"),
        (as_newer, "written by a newer svcd"),
    ],
    ids=["no journal", "a newer one"],
)
async def test_unusable_file_is_refused_and_left_alone(
    spoil: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "journal.sqlite3"
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(Fatal, match=message):
        async with opened(tmp_path):
            pass
    assert path.read_bytes() == before


async def test_times_for_signing_only_grow(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as journal:
        first = await journal.next_signing_time("asks")
        clock.now -= 100
        assert await journal.next_signing_time("asks") == first + 1
        assert await journal.next_signing_time("others") == first - 100
    async with opened(tmp_path, clock) as journal:
        assert await journal.next_signing_time("asks", skip_s=10) == first + 12


async def test_cancelled_writer_does_not_leave_half_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit may contain entries of other tasks, which would otherwise wait forever."""
    job = a_job()
    async with opened(tmp_path) as journal:
        in_thread = trio.to_thread.run_sync

        async def cancelled_before(act: Callable[..., object], *arguments: object) -> object:
            writing.cancel()
            return await in_thread(act, *arguments)

        with trio.CancelScope() as writing, monkeypatch.context() as patched:
            patched.setattr(trio.to_thread, "run_sync", cancelled_before)
            await journal.record_claiming(job, "m")
        assert await journal.read_job_state(job.job_id) == "claiming"


def results_in(directory: Path) -> ResultFiles:
    (directory / "results").mkdir()
    return ResultFiles(directory / "results")


async def test_result_file_is_durable_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, synced = results_in(tmp_path), []
    final = tmp_path / "results" / "0a"

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append(
            (stat.S_ISDIR(found.st_mode), 0 if stat.S_ISDIR(found.st_mode) else found.st_size, final.exists())
        )
        descriptors.append(descriptor)

    descriptors: list[int] = []
    final.with_suffix(".partial").write_bytes(b"of a former attempt, and longer")
    monkeypatch.setattr(os, "fsync", fsync)
    files.store(b"\x0a", b"result")
    assert synced == [(False, 6, False), (True, 0, True)]
    assert final.read_bytes() == b"result"
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


async def test_result_file_is_private(tmp_path: Path) -> None:
    files = results_in(tmp_path)
    files.store(b"\x0a", b"result")
    assert stat.S_IMODE((tmp_path / "results" / "0a").stat().st_mode) == 0o600


async def test_result_file_is_remembered_until_removed(tmp_path: Path) -> None:
    files = results_in(tmp_path)
    files.store(b"\x0a", b"result")
    assert files.has(b"\x0a")
    assert not files.has(b"\x0b")
    for _ in range(2):
        files.remove(b"\x0a")
        assert not files.has(b"\x0a")
        assert list((tmp_path / "results").iterdir()) == []


async def test_orphaned_result_files_are_removed(tmp_path: Path) -> None:
    results_in(tmp_path).store(b"\x0a", b"result")
    results_in_use = ResultFiles(tmp_path / "results")
    results_in_use.store(b"\x0b", b"another")
    (tmp_path / "results" / "0c.partial").write_bytes(b"half")
    again = ResultFiles(tmp_path / "results")
    again.delete_except([b"\x0a"])
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["0a"]
    assert again.has(b"\x0a")


async def test_result_of_the_longest_row_is_no_file_yet(tmp_path: Path) -> None:
    job = a_job()
    async with opened(tmp_path) as journal:
        await journal.record_claiming(job, "m")
        await journal.record_sealed(job.job_id, 5, b"x" * MAX_ROW_BYTES)
        assert list((tmp_path / "results").iterdir()) == []
        assert await journal.open_result(job.job_id) == b"x" * MAX_ROW_BYTES


async def test_step_of_a_job_is_its_state_at_once(tmp_path: Path) -> None:
    job, adopted = a_job(), a_job()
    async with opened(tmp_path) as journal:
        assert journal.is_working
        await journal.record_claiming(job, "m")
        await journal.record_claimed(job.job_id)
        assert await journal.read_job_state(job.job_id) == "claimed"
        await journal.record_sealed(job.job_id, 5, b"result")
        await journal.record_upload(job.job_id, "bafk")
        await journal.record_adopted(adopted, "other")
        live = {entry.job: entry for entry in await journal.read_live_entries()}
        assert (live[job].state, live[job].result_cid) == ("sealed", "bafk")
        assert (live[adopted].state, live[adopted].model) == ("claimed", "other")
        assert await journal.read_job_state(b"n" * 32) is None


async def test_owner_is_known_by_how_its_jobs_ended(tmp_path: Path) -> None:
    paid = a_job()
    async with opened(tmp_path) as journal:
        assert (await journal.read_owner_record(paid.owner)).settled_jobs == 0
        await journal.record_claiming(paid, "m")
        await journal.record_end(paid.job_id, "settled")
        assert (await journal.read_owner_record(paid.owner)).settled_jobs == 1
        assert (await journal.read_owner_record(b"\x0e" * 20)).settled_jobs == 0


async def test_number_that_was_noted_only_grows_and_is_0_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        assert await journal.read_value("asks") == 0
        await journal.store_value("asks", 7)
        assert (await journal.read_value("asks"), await journal.read_value("others")) == (7, 0)


@pytest.mark.parametrize(("ahead", "given"), [(3538, 3539), (3539, 3540), (3540, 0), (3541, 0)])
async def test_signing_time_stays_acceptable(ahead: int, given: int, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as journal:
        await journal.store_value("asks", int(clock.now) + ahead)
        assert await journal.next_signing_time("asks") == int(clock.now) + given


async def test_state_directory_belongs_to_one_daemon(tmp_path: Path) -> None:
    state = tmp_path / "below" / "state"
    assert not is_daemon_running(state)
    async with opened(state):
        assert is_daemon_running(state)
        with pytest.raises(Fatal, match="another svcd runs on the state directory"):
            async with opened(state):
                pass
        assert is_daemon_running(state)
    assert not is_daemon_running(state)
    assert stat.S_IMODE((state / "results").stat().st_mode) == 0o700
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Fatal, match="cannot be used"):
        async with opened(tmp_path / "file"):
            pass
