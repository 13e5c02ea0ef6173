"""History in the journal: jobs by day and model, and the standing by hour, both bounded."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import attrs

from common.quotes import cost
from svcd.journal.book_row import Job
from svcd.journal.history import DailyModelCounts, Standing, read_daily_counts, read_failures, read_standing
from svcd.journal.journal import JOURNAL_FILE, Journal, open_journal
from tests.support.fakes.market import START, Market

DAY = 86_400
TODAY = "2027-01-15"


@attrs.define
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(directory: Path, clock: Clock) -> AsyncIterator[tuple[Journal, sqlite3.Connection]]:
    async with open_journal(directory, clock) as journal:
        path = directory / JOURNAL_FILE
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
            yield journal, reader


def a_job(rate_out: int = 2_000_000) -> Job:
    market = Market(Clock())
    return attrs.evolve(Job.read(market.jobs[market.post()]), rate_in=1_000_000, rate_out=rate_out, units_out=100)


async def settled(journal: Journal, job: Job, completion_tok: int = 7) -> None:
    await journal.record_claiming(job, "m")
    await journal.record_sealed(job.job_id, completion_tok, b"result")
    await journal.record_end(job.job_id, "settled")


async def test_day_sums_exact_payments_and_counts_each_job_once(tmp_path: Path) -> None:
    clock, large = Clock(), a_job(rate_out=2**127)
    async with opened(tmp_path, clock) as (journal, reader):
        small = a_job()
        await settled(journal, small)
        await journal.record_end(small.job_id, "settled")
        await settled(journal, large)
        paid = [
            cost(job.rate_in, job.rate_out, job.units_in, job.units_out, completion_tok=7) for job in (small, large)
        ]
        assert sum(paid) > 2**64
        assert read_daily_counts(reader, START) == [DailyModelCounts(TODAY, "m", 2, sum(paid), 0)]


async def test_only_claimed_jobs_without_a_settle_are_failures(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as (journal, reader):
        for state, reason in (("failed", "unseal_failed"), ("given_up", "sla_abandon"), ("not_claimed", None)):
            job = a_job()
            await journal.record_claiming(job, "m")
            clock.now += 1
            await journal.record_end(job.job_id, state, reason)  # type: ignore[arg-type]
        assert read_daily_counts(reader, START) == [DailyModelCounts(TODAY, "m", 0, 0, 2)]
        assert [one.reason for one in read_failures(reader, 20)] == ["sla_abandon", "unseal_failed"]
        assert len(read_failures(reader, 1)) == 1


async def test_job_of_a_lost_journal_earns_an_unknown_amount(tmp_path: Path) -> None:
    async with opened(tmp_path, Clock()) as (journal, reader):
        job = a_job()
        await journal.record_adopted(job, "m")
        await journal.record_end(job.job_id, "settled")
        assert read_daily_counts(reader, START) == [DailyModelCounts(TODAY, "m", 1, 0, 0)]


async def test_standing_keeps_the_last_values_of_each_hour(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as (journal, reader):
        await journal.record_standing(500, 8)
        await journal.record_standing(501, 8)
        clock.now += 2 * 3600
        await journal.record_standing(490, 7)
        first = START // 3600 * 3600
        both = [Standing(first, 501, 8), Standing(first + 7200, 490, 7)]
        assert read_standing(reader, START - DAY) == both
        assert read_standing(reader, START + 3600) == both  # the first was in force then
        assert read_standing(reader, clock.now) == both[1:]


async def test_old_history_is_deleted(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as (journal, reader):
        await settled(journal, a_job())
        await journal.record_standing(500, 8)
        clock.now += 91 * DAY
        await journal.delete_expired()
        assert (len(read_daily_counts(reader, 0)), read_standing(reader, 0)) == (1, [])
        clock.now += 320 * DAY
        await journal.delete_expired()
        assert read_daily_counts(reader, 0) == []
