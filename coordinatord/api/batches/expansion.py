"""Expansion of a batch: from the lines of its input file to records and posts, a few hundred lines at a time.

Lines are read, checked and stored first; then one transaction queues their posts, records them and moves the cursor. A
death before that commit leaves nothing but stored containers, which the next attempt finds; after it, the lines are
done. So no line is posted twice, and none is left out.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import attrs
import structlog
from anyio import to_thread

from common.domains import Domains
from coordinatord.api.batches import batches_sql, lines_sql
from coordinatord.api.batches.batches_sql import BatchWork
from coordinatord.api.batches.lines import (
    MOST_LINES,
    Checked,
    Cursor,
    Good,
    InputLine,
    LineBatch,
    LineChecks,
    LineContainers,
    LineReader,
    Skipped,
    judged,
)
from coordinatord.api.batches.lines_sql import Allowance, LineRecord, Post
from coordinatord.api.files import files_sql
from coordinatord.api.files.files_sql import Named
from coordinatord.api.orders.validation import UNKNOWN_UPLOAD, ask_chain, judge, upload_check
from coordinatord.base import metrics
from coordinatord.base.clock import Clock
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.contracts.payment_token import read_balance
from coordinatord.chain.relayer import budgets_sql
from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.chain.relayer.budgets_sql import Budget, Spender, Spending, Standing
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.relayer.solvency import Promises, insufficient
from coordinatord.chain.rpc.views import read_many
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.locks import kept_open
from coordinatord.storage.pins import objects_sql
from coordinatord.storage.pins.containers import container_key
from coordinatord.storage.pins.store import PinStore


@attrs.frozen(slots=True)
class Allowed:
    """`lines`: those that may go now, in their order. `whole` is False where lines behind them have to wait."""

    lines: list[Checked]
    allowances: dict[bytes, Allowance]
    whole: bool


@attrs.frozen(slots=True)
class LineAllowances:
    """Room that owners' gas budgets and balances have for lines.

    A line over its owner's gas budget waits, with all lines behind it, until there is room or the batch's window ends:
    the budget grows as the lines before it settle. A line beyond its owner's balance fails, as it would alone. A post
    that was dropped before it was signed takes both again when it comes back, and waits for either: it was promised
    once."""

    promises: Promises
    policy: GasPolicy

    async def room(self, connection: Connection, owner: bytes, most: int) -> int:
        """Number of posts that this owner's gas budget has room for."""
        standing = await self._standings(connection, [owner])
        return await budgets_sql.room(connection, self._spending(owner, standing[owner]), most)

    async def allow(self, connection: Connection, checked: Sequence[Checked], balances: Mapping[bytes, int]) -> Allowed:
        """`balances`: the latest of each owner whose balance the token tells."""
        owners = sorted({one.paid.body.owner for one in checked if isinstance(one, Good)})
        standings = await self._standings(connection, owners)
        solvent, headrooms = await self._solvent(checked, standings, balances)
        allowances: dict[bytes, Allowance] = {}
        rooms: dict[bytes, int] = {}
        for owner in owners:
            spending = self._spending(owner, standings[owner])
            allowances[owner] = Allowance(spending, headrooms.get(owner), standings[owner].position)
            rooms[owner] = await budgets_sql.room(connection, spending, len(solvent))
        for place, one in enumerate(solvent):
            if isinstance(one, Good):
                owner = one.paid.body.owner
                if rooms[owner] <= 0:
                    return Allowed(solvent[:place], allowances, whole=False)
                rooms[owner] -= 1
        return Allowed(solvent, allowances, whole=True)

    async def again(self, connection: Connection, owners: Sequence[bytes]) -> dict[bytes, Allowance]:
        """Of owners whose posts were dropped before they were signed, and are to be queued once more."""
        standings = await self._standings(connection, owners)
        async with kept_open(connection):
            views = [self.promises.token.balance_view(owner) for owner in owners]
            answers = await read_many(self.promises.token.rpc, views, "rpc_internal")
        told = zip(owners, answers, strict=True)
        balances = {owner: balance for owner, answer in told if (balance := read_balance(answer)) is not None}
        return {
            owner: Allowance(
                self._spending(owner, standing),
                balances[owner] - standing.open_amounts if owner in balances else None,
                standing.position,
            )
            for owner, standing in standings.items()
        }

    async def _solvent(
        self, checked: Sequence[Checked], standings: Mapping[bytes, Standing], balances: Mapping[bytes, int]
    ) -> tuple[list[Checked], dict[bytes, int]]:
        """The lines, those that no balance covers skipped; and of each owner what its balance leaves for posts."""
        headrooms = {
            owner: balances[owner] - standing.open_amounts for owner, standing in standings.items() if owner in balances
        }
        promised = {owner: standing.unindexed for owner, standing in standings.items()}
        looked_again: set[bytes] = set()
        kept: list[Checked] = []
        for one in checked:
            if not isinstance(one, Good) or one.paid.body.owner not in headrooms:
                kept.append(one)
                continue
            owner = one.paid.body.owner
            total = promised[owner] + one.paid.amount
            if total > headrooms[owner] and owner not in looked_again:
                looked_again.add(owner)
                balance = await self.promises.balance_as_indexed(owner, standings[owner], balances[owner])
                headrooms[owner] = balance - standings[owner].open_amounts
            if total > headrooms[owner]:
                metrics.budget_refusals.labels("balance").inc()
                refusal = insufficient(owner, one.paid.amount, balances[owner])
                kept.append(Skipped(one.line, one.paid.body.job_id, refusal.name, refusal.message))
            else:
                promised[owner] = total
                kept.append(one)
        return kept, headrooms

    async def _standings(self, connection: Connection, owners: Sequence[bytes]) -> dict[bytes, Standing]:
        if not owners:
            return {}
        found = await budgets_sql.read_standings(connection, [Spender(owner, Budget.POSTS) for owner in owners])
        return {spender.signer: standing for spender, standing in found.items()}

    def _spending(self, owner: bytes, standing: Standing) -> Spending:
        return Spending(owner, gas_estimate(RelayKind.POST), self.policy.limits(Budget.POSTS, standing))


log = structlog.get_logger(__name__)

NOT_POSTED: Final = {
    "cancelled": "the batch was cancelled before this line was posted",
    "expired": "the batch's window ended before this line was posted",
}
_NO_ROOM: Final = 2.0  # seconds until a batch whose owner's gas budget is used up is looked at again
_GIVEN_UP_AFTER: Final = 3  # times that the store says that it has not got the input file


@attrs.frozen(slots=True)
class _Ready:
    """A line that is to be posted under this content id."""

    good: Good
    task_cid: str

    @property
    def job_id(self) -> bytes:
        return self.good.paid.body.job_id


@attrs.frozen(slots=True)
class Expansion:
    domains: Domains
    registry: JobRegistry
    allowances: LineAllowances
    pins: PinStore
    containers: LineContainers
    retention_seconds: int
    clock: Clock
    most_lines: int = MOST_LINES  # of one portion

    async def step(self, connection: Connection, work: BatchWork) -> None:
        """Record the next portion, as much of it as its owners' budgets allow, within the transaction that locks
        `work`."""
        start = Cursor(work.bytes_done, work.lines_done)
        ended = work.cancelling or work.expired
        most = self.most_lines if ended else await self.allowances.room(connection, work.owner, self.most_lines)
        if not most:
            await batches_sql.pause(connection, work.batch_id, _NO_ROOM)
            return
        try:
            async with kept_open(connection):
                portion = await self._read(work, start, most)
        except Retryable as error:
            if error.code != "object_missing" or work.attempts < _GIVEN_UP_AFTER:
                raise
            await self._give_up(connection, work)
            return
        if ended:
            code = "cancelled" if work.cancelling else "expired"
            late = code == "expired"
            records = [LineRecord(line.number, None, None, code, NOT_POSTED[code], late) for line in portion.lines]
        else:
            records = await self._post(connection, work, portion.lines)
            if portion.lines and not records:  # even the first has to wait
                await batches_sql.pause(connection, work.batch_id, _NO_ROOM)
                return
            if len(records) < len(portion.lines):
                async with kept_open(connection):
                    portion = await self._read(work, start, len(records))
        await lines_sql.record(connection, work.batch_id, records)
        expanded = portion.end.offset >= (work.input_bytes or 0)
        await batches_sql.move(connection, work.batch_id, portion.end.offset, portion.end.lines, expanded=expanded)
        await batches_sql.mark_in_progress(connection, work.batch_id)

    async def _read(self, work: BatchWork, start: Cursor, most_lines: int) -> LineBatch:
        if work.input_bytes is None:
            raise Retryable("pinner_unavailable", "the input file is gone", "object_missing")
        key = files_sql.object_key(work.input_file_id)

        def read(first: int, last: int) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
            return self.pins.read(key, first=first, last=last)

        return await LineReader(read, work.input_bytes, most_lines=most_lines).read_lines(start)

    async def _give_up(self, connection: Connection, work: BatchWork) -> None:
        """The store lost the input file. With nothing recorded the batch fails as a whole; otherwise the lines that
        are left end as errors, and what was posted is followed to its end."""
        message = "the object store no longer holds the input file"
        line = work.lines_done + 1 if work.lines_done else None
        error = {"code": "object_missing", "message": message, "param": "input_file_id", "line": line}
        await batches_sql.set_errors(connection, work.batch_id, json.dumps({"object": "list", "data": [error]}))
        log.error("the input file of a batch is lost", batch=work.batch_id, line=line)
        if not work.lines_done:
            await batches_sql.fail(connection, work.batch_id)
            return
        left = (work.input_lines or 0) - await lines_sql.recorded(connection, work.batch_id)
        numbers = range(work.lines_done + 1, work.lines_done + 1 + left)
        await lines_sql.record(
            connection, work.batch_id, [LineRecord(n, None, None, "invalid_line", message) for n in numbers]
        )
        await batches_sql.move(connection, work.batch_id, work.bytes_done, numbers.stop - 1, expanded=True)

    # --- a portion that is to be posted --------------------------------------------------------------------

    async def _post(self, connection: Connection, work: BatchWork, lines: Sequence[InputLine]) -> list[LineRecord]:
        """Records of these lines, or of the first of them when an owner's gas budget has no room for the next."""
        async with kept_open(connection):
            checked, balances = await self._on_chain(await self._alone(work.endpoint, lines))
        goods = [one for one in checked if isinstance(one, Good)]
        uploads = await files_sql.find_inputs(connection, _named(goods))
        checked = judged(checked, judge([good.paid for good in goods], [upload_check(uploads)]))
        checked = await _without_duplicates(connection, work.batch_id, checked)
        allowed = await self.allowances.allow(connection, checked, balances)
        checked = allowed.lines
        goods = [one for one in checked if isinstance(one, Good)]
        bodies = [good.paid.body for good in goods]
        inline = [(body.job_id, body.container, body.owner) for body in bodies if body.container is not None]
        async with kept_open(connection):
            cids = await self.containers.store(inline)
        # From here on nothing but this transaction.
        attached = await files_sql.attach_inputs(connection, uploads, self.retention_seconds)
        skipped = [_record_of(one) for one in checked if isinstance(one, Skipped)]
        ready: list[_Ready] = []
        for good in goods:
            body = good.paid.body
            named = (body.owner, body.container_cid or "")
            if body.container is not None:
                ready.append(_Ready(good, cids[body.job_id]))
            elif named in attached:
                ready.append(_Ready(good, uploads[named].cid))
            else:
                skipped.append(_record_of(good.skipped(UNKNOWN_UPLOAD)))
        posts = await to_thread.run_sync(_posts_of, ready)
        relay_ids = await lines_sql.insert(connection, self.registry.address, posts, allowed.allowances)
        if relay_ids is None:
            raise Retryable("busy", "the owner's budget was taken up by another request")
        await objects_sql.release_many(connection, [container_key(job_id) for job_id in cids])
        posted = [
            LineRecord(one.good.line, one.job_id, relay_id, None, None)
            for one, relay_id in zip(ready, relay_ids, strict=True)
        ]
        return skipped + posted

    async def _alone(self, endpoint: str, lines: Sequence[InputLine]) -> list[Checked]:
        """Check each line by itself. In one thread: the interpreter is held for a third of the time, so a
        second one would add less than half; other cores are for other processes."""
        checks = LineChecks(self.domains, self.registry.address, endpoint, await self.registry.fees(), self.clock())
        return await to_thread.run_sync(checks.check, lines)

    async def _on_chain(self, checked: Sequence[Checked]) -> tuple[list[Checked], Mapping[bytes, int]]:
        """Models and payers as the chain has them, each asked for once, and the payers' balances. Everything else that
        the chain decides is found by the relayer, which tries every post before it sends it."""
        paid = [one.paid for one in checked if isinstance(one, Good)]
        facts = await ask_chain(self.registry, self.allowances.promises.token, paid)
        return judged(checked, judge(paid, [facts.check])), facts.balances


async def _without_duplicates(connection: Connection, batch_id: str, checked: Sequence[Checked]) -> list[Checked]:
    """The first line of a job that could be posted keeps it."""
    jobs = [one.paid.body.job_id for one in checked if isinstance(one, Good)]
    taken = await lines_sql.posted_among(connection, batch_id, jobs)
    kept: list[Checked] = []
    for one in checked:
        if isinstance(one, Good):
            job_id = one.paid.body.job_id
            if job_id in taken:
                message = "another line of the file has the same job_id"
                kept.append(Skipped(one.line, job_id, "duplicate_job_id", message))
                continue
            taken.add(job_id)
        kept.append(one)
    return kept


def _named(goods: Sequence[Good]) -> list[Named]:
    bodies = [good.paid.body for good in goods]
    return sorted({(body.owner, body.container_cid) for body in bodies if body.container_cid is not None})


def _record_of(one: Skipped) -> LineRecord:
    return LineRecord(one.line, one.job_id, None, one.code, one.message)


def _posts_of(ready: Sequence[_Ready]) -> list[Post]:
    return [
        Post(
            one.job_id,
            one.good.paid.dedupe(one.task_cid),
            one.good.paid.calldata(one.task_cid),
            one.good.paid.body.owner,
            one.good.paid.amount,
        )
        for one in ready
    ]
