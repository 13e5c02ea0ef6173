"""Ledger of `svc serve`: purchases, jobs and costs in one SQLite file that survives restarts.

    purchases   one answer for one key, with the digest of its request and its idempotency key
    jobs        jobs posted for a purchase: the authorised amount, and the cost once the job has ended

A tab is a purchase of kind `tab`. A request in a tab is a separate purchase, whose job has the id JOB/NUMBER.

The ledger has no prompts and no answers, only keyed digests and job ids. The wallet can read a result again by its job
id. A job is recorded before it is posted, so that a restart finds every job that may be paid. Python adds up the
amounts, because SQLite's integers end at 2^63 base units.

                 posting ──► done        result received and paid
                    │   └──► unpaid      failed, cancelled, expired or never posted: nothing was collected
                    └─► given ──► done       answered before the settle is mined; the authorised amount stays reserved
                          └─────► refunded   the chain did not settle the answer: nothing was collected
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import attrs
from anyio import to_thread

from common.quotes import FeeTerms
from common.refusal import Refused
from svc.serve.problems import convert_storage_errors

T = TypeVar("T")

TAB_KIND: Final = "tab"  # kind of a tab's purchase
JobState = Literal["posting", "given", "done", "unpaid", "refunded"]
RUNNING_JOB_STATES: Final = frozenset({"posting", "given"})
_PROVISIONAL_KIND: Final = "given"  # kind of the documents with provisional results
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
create table if not exists documents (kind text not null, id text not null, at real not null, key text not null,
    body text not null, primary key (kind, id));
"""


@attrs.frozen(slots=True)
class LedgerPurchase:
    """Row of a purchase.

    `kind` is one word for the route, or `batch` or `tab`. `model_name` is the client's name for the model. `state` is
    running, done or failed.
    """

    id: str
    created_at: float
    key: str
    kind: str
    model_name: str
    model: str
    digest: str
    idempotency_key: str | None
    state: str = "running"
    delivered: bool = False


@attrs.frozen(slots=True)
class LedgerJob:
    """Row of a job."""

    job_id: str
    purchase_id: str
    created_at: float
    provider: int
    amount: int
    terms: FeeTerms
    cost: int | None = None
    state: JobState = "posting"


@attrs.frozen(slots=True)
class ProvisionalResult:
    """Result that was returned before the chain settled the job, with its content id and expected cost."""

    result_cid: str
    provider: int
    cost: int


@attrs.frozen(slots=True)
class SpendEntry:
    """One row of `svc spend`."""

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


@attrs.frozen(slots=True)
class SpendGroup:
    """Sum of the jobs of one day (UTC), model name and key.

    `paid`: cost of the ended jobs. `reserved`: authorised amounts of the `running` jobs. `free`: number of ended jobs
    that cost nothing.
    """

    day: str
    name: str
    key: str
    jobs: int
    running: int
    free: int
    paid: int
    reserved: int


class _ExactSum:
    """SQL aggregate `exact_sum` of amounts stored as text. SQLite's `sum` would overflow."""

    def __init__(self) -> None:
        self._sum = 0

    def step(self, amount: Any, /) -> None:
        self._sum += 0 if amount is None else int(amount)

    def finalize(self) -> Any:
        return str(self._sum)


class Ledger:
    """SQLite ledger with one writing process. `svc spend` and the page may read at the same time.

    Each call runs in a thread, because it waits for the disk.
    """

    def __init__(self, connection: sqlite3.Connection, lock_connection: sqlite3.Connection | None) -> None:
        self._connection = connection
        self._lock_connection = lock_connection
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> "Ledger":
        """Open the ledger for writing. Raises Refused if another process has the ledger open for writing."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock_connection = sqlite3.connect(folder / "serving.lock", isolation_level=None, timeout=0)
        try:
            lock_connection.execute("begin exclusive")  # the operating system releases this lock when the process ends
        except sqlite3.OperationalError:
            lock_connection.close()
            raise Refused(f"another svc serve uses {folder}: stop it, or choose another folder with --state") from None
        path = folder / LEDGER_FILE
        path.touch(mode=0o600)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.executescript(_SCHEMA)
        return cls(connection, lock_connection)

    @classmethod
    def open_read_only(cls, folder: Path) -> "Ledger":
        """Open the ledger for reading, even while another process writes it. Raises Refused if there is no ledger."""
        path = folder / LEDGER_FILE
        if not path.exists():
            raise Refused(
                f"no ledger of svc serve at {path}: nothing was bought there (choose the folder with --state)"
            )
        connection = sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True, check_same_thread=False)
        connection.create_aggregate("exact_sum", 1, _ExactSum)
        return cls(connection, None)

    @property
    def written_row_count(self) -> int:
        """Number of rows written since the ledger was opened."""
        return self._connection.total_changes

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            if self._lock_connection is not None:
                self._lock_connection.close()

    async def run(self, update: Callable[[sqlite3.Connection], T]) -> T:
        """Run `update` in one transaction, in a thread. Cancelling the caller does not interrupt `update`.

        Raises StorageFailed.
        """

        def locked() -> T:
            with convert_storage_errors(), self._lock, _transaction(self._connection) as connection:
                return update(connection)

        return await to_thread.run_sync(locked)

    async def add_purchase(self, row: LedgerPurchase, job: LedgerJob | None = None) -> None:
        """Add a purchase, and its job if there is one already.

        A failed purchase with the same idempotency key loses that key, so that a retry can use it.
        """

        def update(connection: sqlite3.Connection) -> None:
            if row.idempotency_key is not None:
                connection.execute(
                    "update purchases set idempotency = null where key = ? and idempotency = ? and state = 'failed'",
                    (row.key, row.idempotency_key),
                )
            values = (
                row.id,
                row.created_at,
                row.key,
                row.kind,
                row.model_name,
                row.model,
                row.digest,
                row.idempotency_key,
            )
            connection.execute(
                "insert into purchases values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, row.state, row.delivered)
            )
            if job is not None:
                _add_job(connection, job)

        await self.run(update)

    async def add_job(self, row: LedgerJob) -> None:
        await self.run(lambda connection: _add_job(connection, row))

    async def update_job_terms(self, job_id: str, created_at: float, amount: int, terms: FeeTerms) -> None:
        """Store a new amount and new fees, for another attempt of a batch or after a job's fees were quoted again."""
        statement = (
            "update jobs set at = ?, amount = ?, fee_bps = ?, gas_fee = ?, cost = null, state = 'posting'"
            " where job_id = ?"
        )
        values = (created_at, str(amount), terms.fee_bps, str(terms.gas_fee), job_id)
        await self.run(lambda connection: connection.execute(statement, values))

    async def record_job_end(self, job_id: str, state: JobState, cost: int) -> None:
        def update(connection: sqlite3.Connection) -> None:
            connection.execute("update jobs set state = ?, cost = ? where job_id = ?", (state, str(cost), job_id))
            connection.execute("delete from documents where kind = ? and id = ?", (_PROVISIONAL_KIND, job_id))

        await self.run(update)

    async def store_provisional(self, job: LedgerJob, key: str, result: ProvisionalResult) -> None:
        """Record a provisional answer before it is returned, so that it is never bought again."""
        body = json.dumps([result.result_cid, result.provider, str(result.cost)])

        def update(connection: sqlite3.Connection) -> None:
            connection.execute("update jobs set state = 'given' where job_id = ?", (job.job_id,))
            statement = "insert or replace into documents values (?, ?, ?, ?, ?)"
            connection.execute(statement, (_PROVISIONAL_KIND, job.job_id, job.created_at, key, body))

        await self.run(update)

    async def get_provisional_result(self, job_id: str) -> ProvisionalResult | None:
        body = await self.get_document(_PROVISIONAL_KIND, job_id, None)
        if body is None:
            return None
        result_cid, provider, cost = json.loads(body)
        return ProvisionalResult(result_cid, provider, int(cost))

    async def mark_refunded(self, job_id: str) -> None:
        """Record that the chain did not settle a provisional answer.

        An undelivered purchase can then be bought again.
        """

        def update(connection: sqlite3.Connection) -> None:
            connection.execute("update jobs set state = 'refunded', cost = '0' where job_id = ?", (job_id,))
            connection.execute(
                "update purchases set state = 'failed'"
                " where delivered = 0 and id = (select purchase from jobs where job_id = ?)",
                (job_id,),
            )

        await self.run(update)

    async def list_unconfirmed_jobs(self) -> list[LedgerJob]:
        """Return the jobs that the chain has not settled yet although their purchase has ended."""
        statement = (
            "select j.* from jobs j join purchases p on p.id = j.purchase"
            " where j.state = 'given' and p.state <> 'running' order by j.at"
        )
        return await self.run(lambda c: [_to_job(row) for row in c.execute(statement)])

    async def record_purchase_end(self, purchase_id: str, state: str) -> None:
        statement = "update purchases set state = ? where id = ?"
        await self.run(lambda connection: connection.execute(statement, (state, purchase_id)))

    async def mark_delivered(self, purchase_id: str) -> None:
        statement = "update purchases set delivered = 1, state = 'done' where id = ?"
        await self.run(lambda connection: connection.execute(statement, (purchase_id,)))

    async def find_by_idempotency_key(self, key: str, idempotency_key: str) -> LedgerPurchase | None:
        statement = "select * from purchases where key = ? and idempotency = ? and state <> 'failed'"
        return await self.run(lambda c: _to_purchase(c.execute(statement, (key, idempotency_key)).fetchone()))

    async def list_undelivered_purchases(self, key: str, digest: str, since: float) -> list[LedgerPurchase]:
        """Return the paid but undelivered purchases of the request with this digest, oldest first."""
        statement = (
            "select * from purchases where key = ? and digest = ? and delivered = 0 and state = 'done' and at >= ?"
            " order by at"
        )
        rows = await self.run(lambda c: [_to_purchase(row) for row in c.execute(statement, (key, digest, since))])
        return [row for row in rows if row is not None]

    async def list_jobs(self, purchase_id: str) -> list[LedgerJob]:
        """Return the jobs of a purchase, oldest first."""
        statement = "select * from jobs where purchase = ? order by at"
        return await self.run(lambda c: [_to_job(row) for row in c.execute(statement, (purchase_id,))])

    async def list_running_purchases(self) -> list[LedgerPurchase]:
        statement = "select * from purchases where state = 'running' and kind not in ('batch', 'tab') order by at"
        rows = await self.run(lambda c: [_to_purchase(row) for row in c.execute(statement)])
        return [row for row in rows if row is not None]

    async def list_unsettled_tabs(self) -> list[LedgerJob]:
        """Return the jobs of tabs that were not settled when the server last stopped."""
        statement = (
            "select j.* from jobs j join purchases p on p.id = j.purchase"
            " where p.kind = 'tab' and p.state = 'running' order by j.at"
        )
        return await self.run(lambda c: [_to_job(row) for row in c.execute(statement)])

    async def list_tab_requests(self, tab_id: str) -> list[LedgerJob]:
        """Return the requests in a tab, which are jobs with the ids JOB/NUMBER."""
        statement = "select * from jobs where job_id like ? order by at"
        return await self.run(lambda c: [_to_job(row) for row in c.execute(statement, (f"{tab_id}/%",))])

    async def list_jobs_since(self, since: float) -> list[SpendEntry]:
        """Return every job posted since a time or still running, with its purchase."""
        statement = (
            "select j.at, p.key, p.kind, p.name, p.model, j.job_id, j.provider, j.amount, j.cost, j.state"
            " from jobs j join purchases p on p.id = j.purchase where j.at >= ? or j.cost is null order by j.at"
        )
        return await self.run(lambda c: [_to_spend_entry(row) for row in c.execute(statement, (since,))])

    async def find_job(self, job_id: str) -> SpendEntry | None:
        statement = (
            "select j.at, p.key, p.kind, p.name, p.model, j.job_id, j.provider, j.amount, j.cost, j.state"
            " from jobs j join purchases p on p.id = j.purchase where j.job_id = ?"
        )
        found = await self.run(lambda c: c.execute(statement, (job_id,)).fetchone())
        return None if found is None else _to_spend_entry(found)

    async def list_newest_jobs(self, limit: int, before: str | None) -> list[SpendEntry]:
        """Return the newest jobs. With `before`, return the newest of those posted before this job."""
        statement = (
            "select j.at, p.key, p.kind, p.name, p.model, j.job_id, j.provider, j.amount, j.cost, j.state"
            " from jobs j join purchases p on p.id = j.purchase"
            " where j.at <= coalesce((select at from jobs where job_id = :before), 1e300)"
            " and (:before is null or (j.at, j.job_id) < (select at, job_id from jobs where job_id = :before))"
            " order by j.at desc, j.job_id desc limit :limit"
        )
        names = {"before": before, "limit": limit}
        return await self.run(lambda c: [_to_spend_entry(row) for row in c.execute(statement, names)])

    async def list_spend_groups(self, since: float) -> list[SpendGroup]:
        """Return the sums of the jobs posted since a time. Only a read-only ledger has the SQL function `exact_sum`."""
        statement = (
            "select date(j.at, 'unixepoch'), p.name, p.key, count(*), sum(j.cost is null), sum(j.cost is '0'),"
            " exact_sum(j.cost), exact_sum(case when j.cost is null then j.amount end)"
            " from jobs j join purchases p on p.id = j.purchase where j.at >= ? group by 1, 2, 3"
        )

        return await self.run(lambda c: [_to_spend_group(row) for row in c.execute(statement, (since,))])

    async def put_document(self, kind: str, id: str, created_at: float, key: str, body: str) -> None:
        """Store a JSON document: a file's or a batch's description, or a provisional result."""
        statement = "insert or replace into documents values (?, ?, ?, ?, ?)"
        await self.run(lambda connection: connection.execute(statement, (kind, id, created_at, key, body)))

    async def get_document(self, kind: str, id: str, key: str | None) -> str | None:
        """Return a document, or None if it is missing or, with `key`, belongs to another key."""
        statement = "select body from documents where kind = ? and id = ? and (key = ? or ? is null)"
        row_found = await self.run(lambda connection: connection.execute(statement, (kind, id, key, key)).fetchone())
        return None if row_found is None else str(row_found[0])

    async def list_documents(self, kind: str, key: str | None) -> list[str]:
        """Return the documents of a kind, newest first."""
        statement = "select body from documents where kind = ? and (key = ? or ? is null) order by at desc, rowid desc"
        return await self.run(lambda c: [str(row[0]) for row in c.execute(statement, (kind, key, key))])

    async def remove_document(self, kind: str, id: str) -> None:
        await self.run(lambda c: c.execute("delete from documents where kind = ? and id = ?", (kind, id)))


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        connection.execute("begin")
        yield connection
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:  # after some errors, SQLite has already rolled back
            connection.execute("rollback")
        raise


def _add_job(connection: sqlite3.Connection, row: LedgerJob) -> None:
    values = (row.job_id, row.purchase_id, row.created_at, row.provider, str(row.amount), None)
    charges = (row.terms.fee_bps, str(row.terms.gas_fee), row.state)
    connection.execute("insert into jobs values (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, *charges))


def _to_purchase(row: tuple[object, ...] | None) -> LedgerPurchase | None:
    if row is None:
        return None
    id, at, key, kind, name, model, digest, idempotency_key, state, delivered = row
    known = None if idempotency_key is None else str(idempotency_key)
    texts = (str(key), str(kind), str(name), str(model), str(digest))
    return LedgerPurchase(str(id), float(str(at)), *texts, known, str(state), bool(delivered))


def _to_job(row: tuple[str, str, float, int, str, str | None, int, str, JobState]) -> LedgerJob:
    job_id, purchase_id, at, provider, amount, cost, fee_bps, gas_fee, state = row
    paid = None if cost is None else int(cost)
    return LedgerJob(job_id, purchase_id, at, provider, int(amount), FeeTerms(fee_bps, int(gas_fee)), paid, state)


def _to_spend_entry(row: tuple[float, str, str, str, str, str, int, str, str | None, str]) -> SpendEntry:
    at, key, kind, name, model, job_id, provider, amount, cost, state = row
    paid = None if cost is None else int(cost)
    return SpendEntry(at, key, kind, name, model, job_id, provider, int(amount), paid, state)


def _to_spend_group(row: tuple[str, str, str, int, int, int, str, str]) -> SpendGroup:
    day, name, key, jobs, running, free, paid, reserved = row
    return SpendGroup(day, name, key, jobs, running, free, int(paid), int(reserved))
