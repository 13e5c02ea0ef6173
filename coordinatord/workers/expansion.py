"""From the lines of an input file to records and posts, a stretch at a time.

A stretch is read, checked and stored first; then one transaction queues its posts, records its lines and moves the
cursor. A death before that commit leaves nothing but stored containers, which the next attempt finds; after it, the
stretch is done. So no line is posted twice, and none is left out.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import attrs
import structlog
from anyio import to_thread

from common.domains import Domains
from common.scalars import hex_of
from coordinatord.chain.job_registry import JobRegistry
from coordinatord.chain.payment_token import read_balance
from coordinatord.chain.rpc import Call
from coordinatord.chain.views import View, is_true, read_many
from coordinatord.pins.store import PinStore
from coordinatord.service.containers import container_key
from coordinatord.service.line_checks import Checked, Good, LineChecks, Skipped
from coordinatord.service.line_containers import LineContainers
from coordinatord.service.line_reading import MOST_LINES, Cursor, Line, LineReader, Stretch
from coordinatord.service.order_checks import post_calldata, same_post
from coordinatord.service.windows import Clock
from coordinatord.store import batch_inputs, batch_lines, batch_objects, batch_relays, batch_work, batches, files
from coordinatord.store.batch_inputs import Named
from coordinatord.store.batch_lines import LineRecord
from coordinatord.store.batch_relays import Post
from coordinatord.store.batch_work import Work
from coordinatord.store.database import Connection
from coordinatord.store.files import FileRow
from coordinatord.store.open_transactions import kept_open
from coordinatord.trouble import Retryable
from coordinatord.workers.line_allowances import LineAllowances

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
    failed_seconds: int = 259_200  # that the files of a batch without a result are kept
    most_lines: int = MOST_LINES  # of one stretch

    async def step(self, connection: Connection, work: Work) -> None:
        """Record the next stretch, as much of it as its owners' budgets allow, within the transaction that locks
        `work`."""
        start = Cursor(work.bytes_done, work.lines_done)
        ended = work.cancelling or work.expired
        most = self.most_lines if ended else await self.allowances.room(connection, work.owner, self.most_lines)
        if not most:
            await batch_work.pause(connection, work.batch_id, _NO_ROOM)
            return
        try:
            async with kept_open(connection):
                stretch = await self._read(work, start, most)
        except Retryable as trouble:
            if trouble.code != "object_missing" or work.attempts < _GIVEN_UP_AFTER:
                raise
            await self._give_up(connection, work)
            return
        if ended:
            code = "cancelled" if work.cancelling else "expired"
            late = code == "expired"
            records = [LineRecord(line.number, None, None, code, NOT_POSTED[code], late) for line in stretch.lines]
        else:
            records = await self._post(connection, work, stretch.lines)
            if stretch.lines and not records:  # even the first has to wait
                await batch_work.pause(connection, work.batch_id, _NO_ROOM)
                return
            if len(records) < len(stretch.lines):
                async with kept_open(connection):
                    stretch = await self._read(work, start, len(records))
        await batch_lines.record(connection, work.batch_id, records)
        expanded = stretch.end.offset >= (work.input_bytes or 0)
        await batch_work.move(connection, work.batch_id, stretch.end.offset, stretch.end.lines, expanded=expanded)
        await batches.mark_in_progress(connection, work.batch_id)

    async def _read(self, work: Work, start: Cursor, most_lines: int) -> Stretch:
        if work.input_bytes is None:
            raise Retryable("pinner_unavailable", "the input file is gone", "object_missing")
        key = files.object_key(work.input_file_id)

        def read(first: int, last: int) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
            return self.pins.read(key, first=first, last=last)

        return await LineReader(read, work.input_bytes, most_lines=most_lines).stretch(start)

    async def _give_up(self, connection: Connection, work: Work) -> None:
        """The store lost the input file. With nothing recorded the batch fails as a whole; otherwise the lines that
        are left end as errors, and what was posted is followed to its end."""
        message = "the object store no longer holds the input file"
        line = work.lines_done + 1 if work.lines_done else None
        error = {"code": "object_missing", "message": message, "param": "input_file_id", "line": line}
        await batches.set_errors(connection, work.batch_id, json.dumps({"object": "list", "data": [error]}))
        log.error("the input file of a batch is lost", batch=work.batch_id, line=line)
        if not work.lines_done:
            await batches.fail(connection, work.batch_id)
            await files.shorten(connection, [work.input_file_id], self.failed_seconds)
            return
        left = (work.input_lines or 0) - await batch_lines.recorded(connection, work.batch_id)
        numbers = range(work.lines_done + 1, work.lines_done + 1 + left)
        await batch_lines.record(
            connection, work.batch_id, [LineRecord(n, None, None, "invalid_line", message) for n in numbers]
        )
        await batch_work.move(connection, work.batch_id, work.bytes_done, numbers.stop - 1, expanded=True)

    # --- a stretch that is to be posted --------------------------------------------------------------------

    async def _post(self, connection: Connection, work: Work, lines: Sequence[Line]) -> list[LineRecord]:
        """Records of these lines, or of the first of them when an owner's gas budget has no room for the next."""
        async with kept_open(connection):
            checked, balances = await self._on_chain(await self._alone(work.endpoint, lines))
        goods = [one for one in checked if isinstance(one, Good)]
        uploads = await batch_inputs.find(connection, _named(goods))
        checked = [_with_upload(one, uploads) if isinstance(one, Good) else one for one in checked]
        checked = await _without_duplicates(connection, work.batch_id, checked)
        allowed = await self.allowances.allow(connection, checked, balances)
        checked = allowed.lines
        goods = [one for one in checked if isinstance(one, Good)]
        bodies = [good.paid.body for good in goods]
        inline = [(body.job_id, body.container, body.owner) for body in bodies if body.container is not None]
        async with kept_open(connection):
            cids = await self.containers.store(inline)
        # From here on nothing but this transaction.
        attached = await batch_inputs.attach(connection, uploads, self.retention_seconds)
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
                skipped.append(_record_of(_unknown(good)))
        posts = await to_thread.run_sync(_posts_of, ready)
        relay_ids = await batch_relays.insert(connection, self.registry.address, posts, allowed.allowances)
        if relay_ids is None:
            raise Retryable("busy", "the owner's budget was taken up by another request")
        await batch_objects.release(connection, [container_key(job_id) for job_id in cids])
        posted = [
            LineRecord(one.good.line, one.job_id, relay_id, None, None)
            for one, relay_id in zip(ready, relay_ids, strict=True)
        ]
        return skipped + posted

    async def _alone(self, endpoint: str, lines: Sequence[Line]) -> list[Checked]:
        """What each line decides by itself. In one thread: the interpreter is held for a third of the time, so a
        second one would add less than half; other cores are for other processes."""
        checks = LineChecks(self.domains, self.registry.address, endpoint, await self.registry.fees(), self.clock())
        return await to_thread.run_sync(checks.check, lines)

    async def _on_chain(self, checked: Sequence[Checked]) -> tuple[list[Checked], dict[bytes, int]]:
        """Models and payers as the chain has them, each asked for once, and the payers' balances. Everything else that
        the chain decides is found by the relayer, which tries every post before it sends it."""
        bodies = [one.paid.body for one in checked if isinstance(one, Good)]
        models = sorted({body.model_id for body in bodies})
        owners = sorted({body.owner for body in bodies})
        views: list[View | Call] = [self.registry.model_enabled_view(model_id) for model_id in models]
        views += [Call("eth_getCode", (hex_of(owner), "latest")) for owner in owners]
        views += [self.allowances.promises.token.balance_view(owner) for owner in owners]
        answers = iter(await read_many(self.registry.rpc, views, "payer_code_read"))
        enabled = {model for model in models if is_true(next(answers))}
        plain = {owner for owner in owners if next(answers) == b""}
        told = {owner: read_balance(next(answers)) for owner in owners}
        balances = {owner: balance for owner, balance in told.items() if balance is not None}

        def judged(one: Checked) -> Checked:
            if isinstance(one, Skipped):
                return one
            body = one.paid.body
            if body.model_id not in enabled:
                return Skipped(one.line, body.job_id, "invalid_model", "model_id is not an enabled model")
            if body.owner not in plain:
                message = "owner has contract code; pay from an account without code"
                return Skipped(one.line, body.job_id, "payer_has_code", message)
            return one

        return [judged(one) for one in checked], balances


async def _without_duplicates(connection: Connection, batch_id: str, checked: Sequence[Checked]) -> list[Checked]:
    """The first line of a job that could be posted keeps it."""
    jobs = [one.paid.body.job_id for one in checked if isinstance(one, Good)]
    taken = await batch_lines.posted_among(connection, batch_id, jobs)
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


def _with_upload(good: Good, uploads: dict[Named, FileRow]) -> Checked:
    body = good.paid.body
    if body.container_cid is None:
        return good
    upload = uploads.get((body.owner, body.container_cid))
    if upload is None:
        return _unknown(good)
    if upload.commitment != body.c:
        return Skipped(good.line, body.job_id, "commitment_mismatch", "the upload does not reproduce c")
    return good


def _unknown(good: Good) -> Skipped:
    return Skipped(
        good.line, good.paid.body.job_id, "unknown_container", "container_cid names no live upload of the owner"
    )


def _record_of(one: Skipped) -> LineRecord:
    return LineRecord(one.line, one.job_id, None, one.code, one.message)


def _posts_of(ready: Sequence[_Ready]) -> list[Post]:
    return [
        Post(
            one.job_id,
            same_post(one.good.paid, one.task_cid),
            post_calldata(one.good.paid, one.task_cid),
            one.good.paid.body.owner,
            one.good.paid.amount,
        )
        for one in ready
    ]
