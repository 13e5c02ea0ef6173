"""Ledger of `svc serve`: what was bought for whom and what it cost, in one SQLite file that survives restarts.

    purchases   one answer that somebody asked for: by key, with the digest of what was asked and its idempotency key
    jobs        what was posted for it, one after the other: amount authorised, cost once it ended

It holds no prompt and no answer: a digest keyed by the local key, and job ids, with which the wallet reads the result
again. A job is written down before it is posted, so that a restart finds whatever may have been paid for. Sums are made
here and not by SQLite, whose integers end at 2^63 base units.

                 posting ──► done        the result is there and paid
                    │   └──► unpaid      failed, cancelled, expired, or never posted: nothing was collected
                    └─► given ──► done       the answer was given before its block; the whole amount is reserved
                          └─────► refunded   it came to nothing on the chain: nothing was collected
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeVar

import attrs
from anyio import to_thread

from common.quotes import FeeTerms
from common.refusal import Refused
from svc.serve.problems import storing

T = TypeVar("T")

JobState = Literal["posting", "given", "done", "unpaid", "refunded"]
UNDER_WAY: Final = frozenset({"posting", "given"})
_GIVEN: Final = "given"  # things: results that were given before their block, by job
LEDGER_FILE: Final = "ledger.sqlite3"
_SCHEMA: Final = """
create table if not exists purchases (
    id text primary key, at real not null, key text not null, kind text not null, name text not null,
    model text not null, digest text not null, idempotency text, state text not null, delivered integer not null
);
create unique index if not exists purchases_idempotency on purchases (key, idempotency) where idempotency is not null;
create index if not exists purchases_digest on purchases (key, digest, delivered);
create table if not exists jobs (
    job_id text primary key, purchase text not null references purchases (id), at real not null, provider integer,
    amount text not null, cost text, fee_bps integer not null, gas_fee text not null, state text not null
);
create index if not exists jobs_at on jobs (at);
create index if not exists jobs_purchase on jobs (purchase);
create table if not exists things (kind text not null, id text not null, at real not null, key text not null,
    body text not null, primary key (kind, id));
"""


@attrs.frozen(slots=True)
class LedgerPurchase:
    """`kind` is the route in a word; `name` the model as it was asked for. `state`: running, done, failed."""

    id: str
    at: float
    key: str
    kind: str
    name: str
    model: str
    digest: str
    idempotency: str | None
    state: str = "running"
    delivered: bool = False


@attrs.frozen(slots=True)
class LedgerJob:
    job_id: str
    purchase: str
    at: float
    provider: int
    amount: int
    terms: FeeTerms
    cost: int | None = None
    state: JobState = "posting"

    @property
    def committed(self) -> int:
        """What it takes of a budget: all that was authorised until it has ended, then what it cost."""
        return self.amount if self.cost is None else self.cost


@attrs.frozen(slots=True)
class GivenResult:
    """A result that was given before its block: where it is read again, and what it is to cost."""

    result_cid: str
    provider: int
    cost: int


@attrs.frozen(slots=True)
class Spent:
    """One line of `svc spend`."""

    at: float
    key: str
    kind: str
    name: str
    model: str
    job_id: str
    provider: int
    amount: int
    cost: int | None
    state: str


class Ledger:
    """One process at a time writes it; `svc spend` reads beside it. Calls are made in a thread, since each waits for
    the disk."""

    def __init__(self, connection: sqlite3.Connection, guard: sqlite3.Connection | None) -> None:
        self._connection = connection
        self._guard = guard
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> "Ledger":
        """Raises Refused where another process has it, or it cannot be written."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        guard = sqlite3.connect(folder / "serving.lock", isolation_level=None, timeout=0)
        try:
            guard.execute("begin exclusive")  # until this process ends, however it ends
        except sqlite3.OperationalError:
            guard.close()
            raise Refused(f"another svc serve has {folder}: stop it, or name another folder with --state") from None
        path = folder / LEDGER_FILE
        path.touch(mode=0o600)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.executescript(_SCHEMA)
        return cls(connection, guard)

    @classmethod
    def reading(cls, folder: Path) -> "Ledger":
        """For a look beside the process that writes. Raises Refused where there is none."""
        path = folder / LEDGER_FILE
        if not path.exists():
            raise Refused(f"{path} must be the ledger of svc serve, and there is none: nothing was bought there")
        connection = sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True, check_same_thread=False)
        return cls(connection, None)

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            if self._guard is not None:
                self._guard.close()

    async def run(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Run `act` in one transaction, in a thread. A cancelled caller does not interrupt it. Raises StorageFailed."""

        def locked() -> T:
            with storing(), self._lock, _transaction(self._connection) as connection:
                return act(connection)

        return await to_thread.run_sync(locked)

    async def add_purchase(self, row: LedgerPurchase, job: LedgerJob | None = None) -> None:
        """Add a purchase, with its job if it has one already. An earlier purchase with the same idempotency key that
        failed, and cost nothing, loses that key."""

        def act(connection: sqlite3.Connection) -> None:
            if row.idempotency is not None:
                connection.execute(
                    "update purchases set idempotency = null where key = ? and idempotency = ? and state = 'failed'",
                    (row.key, row.idempotency),
                )
            values = (row.id, row.at, row.key, row.kind, row.name, row.model, row.digest, row.idempotency)
            connection.execute(
                "insert into purchases values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, row.state, row.delivered)
            )
            if job is not None:
                _add_job(connection, job)

        await self.run(act)

    async def add_job(self, row: LedgerJob) -> None:
        await self.run(lambda connection: _add_job(connection, row))

    async def renew_job(self, job_id: str, at: float, amount: int, terms: FeeTerms) -> None:
        """For another attempt under the same id, which a batch has, or at a price that was learned from the post."""
        statement = (
            "update jobs set at = ?, amount = ?, fee_bps = ?, gas_fee = ?, cost = null, state = 'posting'"
            " where job_id = ?"
        )
        values = (at, str(amount), terms.fee_bps, str(terms.gas_fee), job_id)
        await self.run(lambda connection: connection.execute(statement, values))

    async def end_job(self, job_id: str, state: JobState, cost: int) -> None:
        def act(connection: sqlite3.Connection) -> None:
            connection.execute("update jobs set state = ?, cost = ? where job_id = ?", (state, str(cost), job_id))
            connection.execute("delete from things where kind = ? and id = ?", (_GIVEN, job_id))

        await self.run(act)

    async def give(self, job: LedgerJob, key: str, given: GivenResult) -> None:
        """Before the answer leaves: whatever the chain makes of the job, it is not bought again."""
        body = json.dumps([given.result_cid, given.provider, str(given.cost)])

        def act(connection: sqlite3.Connection) -> None:
            connection.execute("update jobs set state = 'given' where job_id = ?", (job.job_id,))
            statement = "insert or replace into things values (?, ?, ?, ?, ?)"
            connection.execute(statement, (_GIVEN, job.job_id, job.at, key, body))

        await self.run(act)

    async def given(self, job_id: str) -> GivenResult | None:
        body = await self.get(_GIVEN, job_id, None)
        if body is None:
            return None
        result_cid, provider, cost = json.loads(body)
        return GivenResult(result_cid, provider, int(cost))

    async def refund(self, job_id: str) -> None:
        """A given answer came to nothing on the chain. Where nobody has had it, its purchase makes room for another."""

        def act(connection: sqlite3.Connection) -> None:
            connection.execute("update jobs set state = 'refunded', cost = '0' where job_id = ?", (job_id,))
            connection.execute(
                "update purchases set state = 'failed'"
                " where delivered = 0 and id = (select purchase from jobs where job_id = ?)",
                (job_id,),
            )

        await self.run(act)

    async def unconfirmed(self) -> list[LedgerJob]:
        """Given answers of purchases that are over, whose end on the chain is not known."""
        statement = (
            "select j.* from jobs j join purchases p on p.id = j.purchase"
            " where j.state = 'given' and p.state <> 'running' order by j.at"
        )
        return await self.run(lambda c: [_job(row) for row in c.execute(statement)])

    async def end_purchase(self, purchase: str, state: str) -> None:
        statement = "update purchases set state = ? where id = ?"
        await self.run(lambda connection: connection.execute(statement, (state, purchase)))

    async def deliver(self, purchase: str) -> None:
        statement = "update purchases set delivered = 1, state = 'done' where id = ?"
        await self.run(lambda connection: connection.execute(statement, (purchase,)))

    async def asked_before(self, key: str, idempotency: str) -> LedgerPurchase | None:
        statement = "select * from purchases where key = ? and idempotency = ? and state <> 'failed'"
        return await self.run(lambda c: _purchase(c.execute(statement, (key, idempotency)).fetchone()))

    async def undelivered(self, key: str, digest: str, since: float) -> list[LedgerPurchase]:
        """Answers to the same question that are paid and that nobody has had, the oldest first."""
        statement = (
            "select * from purchases where key = ? and digest = ? and delivered = 0 and state = 'done' and at >= ?"
            " order by at"
        )
        rows = await self.run(lambda c: [_purchase(row) for row in c.execute(statement, (key, digest, since))])
        return [row for row in rows if row is not None]

    async def jobs_of(self, purchase: str) -> list[LedgerJob]:
        """In the order in which they were posted."""
        statement = "select * from jobs where purchase = ? order by at"
        return await self.run(lambda c: [_job(row) for row in c.execute(statement, (purchase,))])

    async def running(self) -> list[LedgerPurchase]:
        statement = "select * from purchases where state = 'running' and kind <> 'batch' order by at"
        rows = await self.run(lambda c: [_purchase(row) for row in c.execute(statement)])
        return [row for row in rows if row is not None]

    async def since(self, at: float) -> list[Spent]:
        """Every job posted since, or not ended yet, with whom it was for."""
        statement = (
            "select j.at, p.key, p.kind, p.name, p.model, j.job_id, j.provider, j.amount, j.cost, j.state"
            " from jobs j join purchases p on p.id = j.purchase where j.at >= ? or j.cost is null order by j.at"
        )
        return await self.run(lambda c: [_spent(row) for row in c.execute(statement, (at,))])

    # What has a body of JSON: files and batches, by kind.

    async def put(self, kind: str, id: str, at: float, key: str, body: str) -> None:
        statement = "insert or replace into things values (?, ?, ?, ?, ?)"
        await self.run(lambda connection: connection.execute(statement, (kind, id, at, key, body)))

    async def get(self, kind: str, id: str, key: str | None) -> str | None:
        """`key`: whose it must be; None for anybody's."""
        statement = "select body from things where kind = ? and id = ? and (key = ? or ? is null)"
        found = await self.run(lambda connection: connection.execute(statement, (kind, id, key, key)).fetchone())
        return None if found is None else str(found[0])

    async def all(self, kind: str, key: str | None) -> list[str]:
        """The newest first."""
        statement = "select body from things where kind = ? and (key = ? or ? is null) order by at desc, rowid desc"
        return await self.run(lambda c: [str(row[0]) for row in c.execute(statement, (kind, key, key))])

    async def remove(self, kind: str, id: str) -> None:
        await self.run(lambda c: c.execute("delete from things where kind = ? and id = ?", (kind, id)))


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        connection.execute("begin")
        yield connection
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:  # SQLite has rolled back by itself after some failures
            connection.execute("rollback")
        raise


def _add_job(connection: sqlite3.Connection, row: LedgerJob) -> None:
    values = (row.job_id, row.purchase, row.at, row.provider, str(row.amount), None)
    charges = (row.terms.fee_bps, str(row.terms.gas_fee), row.state)
    connection.execute("insert into jobs values (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, *charges))


def _purchase(row: tuple[object, ...] | None) -> LedgerPurchase | None:
    if row is None:
        return None
    id, at, key, kind, name, model, digest, idempotency, state, delivered = row
    known = None if idempotency is None else str(idempotency)
    texts = (str(key), str(kind), str(name), str(model), str(digest))
    return LedgerPurchase(str(id), float(str(at)), *texts, known, str(state), bool(delivered))


def _job(row: tuple[str, str, float, int, str, str | None, int, str, JobState]) -> LedgerJob:
    job_id, purchase, at, provider, amount, cost, fee_bps, gas_fee, state = row
    paid = None if cost is None else int(cost)
    return LedgerJob(job_id, purchase, at, provider, int(amount), FeeTerms(fee_bps, int(gas_fee)), paid, state)


def _spent(row: tuple[float, str, str, str, str, str, int, str, str | None, str]) -> Spent:
    at, key, kind, name, model, job_id, provider, amount, cost, state = row
    paid = None if cost is None else int(cost)
    return Spent(at, key, kind, name, model, job_id, provider, int(amount), paid, state)
