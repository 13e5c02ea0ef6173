"""Count how often each invariant was at risk. A run fails if nothing tried to break a promise.

Each risk has a minimum: a rate per minute, or once if the faults that cause the risk struck often.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import asyncpg
import attrs

from tests.soak.timeline import Timeline
from tests.soak.useful import USEFUL

_MIN_MINUTES: Final = 1.0  # shortest run with minimum counts
_MIN_STRIKES: Final = 4  # faults after which their risk must have occurred
_GONE: Final = (
    *("coordinator_killed", "coordinator_restarted", "database_cut", "database_restart", "database_killed"),
    *("database_password", "database_login", "backends_terminated"),
    *("killed_before_broadcast", "killed_after_broadcast", "killed_after_receipt", "killed_after_persist"),
)
_BACK: Final = ("reorg",)
_REFUSED_PAYOUTS: Final = ("token_paused", "owner_blacklisted")


@attrs.frozen
class Run:
    """Input for counting risks. `seen` counts chain events by name, including events that a reorg erased. `audited`
    counts rows by audit table, and `under_way` rows that faults met by table."""

    timeline: Timeline
    minutes: float
    promised: int
    broadcasts: int
    streamed: int = 0
    posted: int = 0
    seen: Mapping[str, int] = attrs.field(factory=dict)
    audited: Mapping[str, int] = attrs.field(factory=dict)
    under_way: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen
class Risk:
    """`least` is the required count in this run."""

    invariant: str
    what: str
    times: int
    least: int

    @property
    def is_hollow(self) -> bool:
        return self.times < self.least

    def __str__(self) -> str:
        return f"{self.invariant}: {self.times} {self.what}" + (f" (at least {self.least})" if self.least else "")


@attrs.frozen
class _Counted:
    """`count` is SQL, or a function of the run. `a_minute` is the required rate, unless `when` names the faults that
    cause the risk."""

    invariant: str
    what: str
    count: str | Callable[[Run], int]
    a_minute: float = 0.0
    when: Sequence[str] = ()
    always: int = 0  # required count of every run, however short


def _ended(*outcomes: str) -> Callable[[Run], int]:
    return lambda run: sum(
        times
        for met in run.timeline.outcome_counts().values()
        for outcome, times in met.items()
        if any(each in outcome for each in outcomes)
    )


def _told(*names: str) -> Callable[[Run], int]:
    return lambda run: sum(run.seen.get(name, 0) for name in names)


def _audited(table: str) -> Callable[[Run], int]:
    return lambda run: run.audited.get(table, 0)


def _under_way(table: str) -> Callable[[Run], int]:
    return lambda run: run.under_way.get(table, 0)


def _in_quiet(run: Run) -> int:
    counts = run.timeline.outcome_counts()
    return sum(sum(met.values()) for what, met in counts.items() if what.endswith(", in quiet"))


_UNDER_WAY: Final = (
    "select count(*) from {0} r where exists (select from unnest($1::float8[]) as f(at)"
    " where extract(epoch from r.created_at) < f.at and extract(epoch from {1}) > f.at)"
)
_ENDED_AT: Final = {"relays": "ended_at", "batches": "coalesce(completed_at, expired_at, cancelled_at, failed_at)"}
_RISKS: Final = (
    _Counted("I1", "jobs promised with a 201", lambda run: run.promised, 5),
    _Counted("I1", "relays under way as a process or the database went", _under_way("relays"), 0, _GONE),
    _Counted("I1", "events told by streams", lambda run: run.streamed, 20),
    _Counted("I1", "messages posted to webhooks", lambda run: run.posted, 10),
    _Counted("I2", "relays of jobs", "select count(*) from relays where kind in ('post', 'claim', 'settle')", 10),
    _Counted(
        "I2", "pieces of work posted at two coordinators at once", lambda run: _pieces(run, "job posted twice"), 0.3
    ),
    _Counted("I3", "nonces given out", "select count(*) from relay_txs where purpose <> 'foreign'", 10),
    _Counted("I3", "nonces that somebody else used", _audited("foreign_history"), 0, ("foreign_transaction",)),
    _Counted("I4", "events indexed", lambda run: sum(run.seen.values()), 20),
    _Counted("I4", "changes by the market's operator", _told("SlaSet", "ModelSet", "AllowlistSet", "CeilingSet"), 10),
    _Counted("I4", "events taken back", "select count(*) from events where takes_back is not null", 0, _BACK),
    _Counted("I5", "payments collected", _told("JobClaimed"), 5),
    _Counted("I5", "payouts refused and credited", _told("PayoutCredited"), 0, _REFUSED_PAYOUTS),
    _Counted("I6", "lines of batches", "select count(*) from batch_lines", 5),
    _Counted("I6", "batches under way as a process or the database went", _under_way("batches")),
    _Counted("I7", "objects referred to", "select count(*) from objects where cid is not null", 10),
    _Counted("I8", "sessions opened", _audited("session_history"), 10),
    _Counted("I8", "nonces shown to every coordinator at once", _ended("one session"), 2),
    _Counted("I8", "sessions used after their time", _ended("ended in time"), 0.5),
    _Counted("I9", "leases", _audited("lease_history"), 5),
    _Counted("I10", "broadcasts", lambda run: run.broadcasts, 20),
    _Counted("I11", "exits relayed", "select count(*) from relays where kind in ('settle', 'fail', 'reclaim')", 5),
    _Counted("I12", "answers that a limit was reached", _ended("429"), 0.3),
    _Counted("I13", "jobs claimed and ended", _told("JobSettled", "JobFailed", "JobReclaimed"), 5),
    _Counted("I13", "windows missed, and jobs reclaimed", _told("JobReclaimed")),
    _Counted("I13", "kinds of work done once all was quiet", _in_quiet, always=len(USEFUL)),
)


def _pieces(run: Run, what: str) -> int:
    return sum(run.timeline.outcome_counts().get(what, {}).values())


async def under_way(connection: "asyncpg.Connection[asyncpg.Record]", timeline: Timeline) -> Counter[str]:
    """Count the rows of each table that were unfinished when a fault of this round struck."""
    strikes = [since for since, _ in timeline.moments(*_GONE)]
    return Counter(
        {
            table: int(await connection.fetchval(_UNDER_WAY.format(table, ended_at), strikes))
            for table, ended_at in _ENDED_AT.items()
        }
    )


async def counted(connection: "asyncpg.Connection[asyncpg.Record]", run: Run) -> list[Risk]:
    return [Risk(one.invariant, one.what, await _count(connection, run, one.count), _least(run, one)) for one in _RISKS]


def least_of(run: Run) -> dict[str, int]:
    """Return the required number of occurrences of each risk."""
    return {one.what: _least(run, one) for one in _RISKS}


def hollow(risks: Sequence[Risk]) -> list[str]:
    return [f"{risk}: the run is hollow" for risk in risks if risk.is_hollow]


async def _count(connection: "asyncpg.Connection[asyncpg.Record]", run: Run, count: str | Callable[[Run], int]) -> int:
    return int(await connection.fetchval(count)) if isinstance(count, str) else count(run)


def _least(run: Run, one: _Counted) -> int:
    if one.always or run.minutes < _MIN_MINUTES:
        return one.always
    if one.when:
        struck = run.timeline.fault_counts()
        return int(sum(struck.get(kind, 0) for kind in one.when) >= _MIN_STRIKES)
    return int(one.a_minute * run.minutes)
