"""Expansion of a batch: from the lines of its input file to records and posts, a few hundred lines at a time.

Lines are read and checked, and their containers stored. Then one transaction queues the posts, records the lines and
moves the cursor. A crash before the commit leaves only stored containers, which the next attempt finds. So no line is
posted twice or skipped.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import attrs
import structlog
from anyio import to_thread

from common.domains import Domains
from coordinatord.api.batches import lines_sql, posts_sql, work_sql
from coordinatord.api.batches.allowances import LineAllowances
from coordinatord.api.batches.line_checks import CheckedLine, LineChecks, PaidLine
from coordinatord.api.batches.line_containers import LineContainers
from coordinatord.api.batches.line_reader import MAX_LINES, Cursor, InputLine, LineBatch, LineReader
from coordinatord.api.batches.lines_sql import LineRecord
from coordinatord.api.batches.posts_sql import Post
from coordinatord.api.batches.work_sql import BatchWork
from coordinatord.api.files import files_sql
from coordinatord.api.files.files_sql import FileRow, Named
from coordinatord.api.orders.faults import UNKNOWN_UPLOAD
from coordinatord.api.orders.validation import ChainFacts, read_chain, upload_fault
from coordinatord.base.clock import Clock
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.locks import kept_open
from coordinatord.storage.pins import objects_sql
from coordinatord.storage.pins.containers import container_key
from coordinatord.storage.pins.store import PinStore

NOT_POSTED: Final = {
    "cancelled": "the batch was cancelled before this line was posted",
    "expired": "the batch's window ended before this line was posted",
}
BUDGET_RETRY_S: Final = 2.0  # until the next attempt after the owner's gas budget was exhausted
MAX_MISSING: Final = 3  # answers of the store that the input file does not exist


log = structlog.get_logger(__name__)


@attrs.frozen(slots=True)
class Expansion:
    domains: Domains
    registry: JobRegistry
    allowances: LineAllowances
    pins: PinStore
    containers: LineContainers
    retention_seconds: int
    clock: Clock
    max_lines: int = MAX_LINES  # of one portion

    async def step(self, connection: Connection, work: BatchWork) -> None:
        """Record the next portion, as much of it as its owners' budgets allow, in the transaction that locks `work`."""
        start = Cursor(work.bytes_done, work.lines_done)
        ended = work.cancelling or work.expired
        limit = self.max_lines if ended else await self.allowances.room(connection, work.owner, self.max_lines)
        if not limit:
            await work_sql.pause(connection, work.batch_id, BUDGET_RETRY_S)
            return
        try:
            async with kept_open(connection):
                portion = await self._read(work, start, limit)
        except Retryable as error:
            if error.code != "object_missing" or work.attempts < MAX_MISSING:
                raise
            await self._give_up(connection, work)
            return
        if ended:
            code = "cancelled" if work.cancelling else "expired"
            late = code == "expired"
            records = [LineRecord(line.number, None, None, code, NOT_POSTED[code], late) for line in portion.lines]
        else:
            records = await self._post(connection, work, portion.lines)
            if portion.lines and not records:  # no gas budget for the first line
                await work_sql.pause(connection, work.batch_id, BUDGET_RETRY_S)
                return
            if len(records) < len(portion.lines):
                async with kept_open(connection):
                    portion = await self._read(work, start, len(records))
        await lines_sql.record(connection, work.batch_id, records)
        expanded = portion.end.offset >= (work.input_bytes or 0)
        await work_sql.move(connection, work.batch_id, portion.end.offset, portion.end.lines, expanded=expanded)
        await work_sql.mark_in_progress(connection, work.batch_id)

    async def _read(self, work: BatchWork, start: Cursor, max_lines: int) -> LineBatch:
        if work.input_bytes is None:
            raise Retryable("pinner_unavailable", "the input file is gone", "object_missing")
        key = files_sql.object_key(work.input_file_id)

        def read(first: int, last: int) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
            return self.pins.read(key, first=first, last=last)

        return await LineReader(read, work.input_bytes, max_lines=max_lines).read_lines(start)

    async def _give_up(self, connection: Connection, work: BatchWork) -> None:
        """End a batch after the store lost its input file. Without any recorded line, the whole batch fails. Otherwise
        the remaining lines end as errors, and posted lines are followed to their end."""
        message = "the object store no longer holds the input file"
        line = work.lines_done + 1 if work.lines_done else None
        error = {"code": "object_missing", "message": message, "param": "input_file_id", "line": line}
        await work_sql.set_errors(connection, work.batch_id, json.dumps({"object": "list", "data": [error]}))
        log.error("batch input file lost", batch=work.batch_id, line=line)
        if not work.lines_done:
            await work_sql.fail(connection, work.batch_id)
            return
        left = (work.input_lines or 0) - await lines_sql.recorded(connection, work.batch_id)
        numbers = range(work.lines_done + 1, work.lines_done + 1 + left)
        await lines_sql.record(
            connection, work.batch_id, [LineRecord(n, None, None, "invalid_line", message) for n in numbers]
        )
        await work_sql.move(connection, work.batch_id, work.bytes_done, numbers.stop - 1, expanded=True)

    async def _post(self, connection: Connection, work: BatchWork, lines: Sequence[InputLine]) -> list[LineRecord]:
        """Post lines. Return their records, up to the first line beyond its owner's gas budget."""
        async with kept_open(connection):
            checks = LineChecks(
                self.domains, self.registry.address, work.endpoint, await self.registry.fees(), self.clock()
            )
            # Use one thread. A second one would add less than half, because the work holds the GIL for a third of it.
            checked = await to_thread.run_sync(checks.check, lines)
            bodies = [one.paid.body for one in checked if isinstance(one, PaidLine)]
            # The relayer simulates every post before sending, which covers all checks that are left out here.
            facts = await read_chain(self.registry, self.allowances.promises.token, bodies)
        uploads = await files_sql.find_inputs(connection, _named(checked))
        posted = await lines_sql.posted_among(connection, work.batch_id, [body.job_id for body in bodies])
        checked = [_checked_further(one, facts, uploads, posted) for one in checked]
        allowed, allowances = await self.allowances.allow(connection, checked, facts.balances)
        paid = [one.paid for one in allowed if isinstance(one, PaidLine)]
        inline = [
            (one.body.job_id, one.body.container, one.body.owner) for one in paid if one.body.container is not None
        ]
        async with kept_open(connection):
            cids = await self.containers.store(inline)
        # From here on, other transactions cannot change the result.
        named = {one: uploads[one] for one in _named(allowed)}
        attached = await files_sql.attach_inputs(connection, named, self.retention_seconds)
        cids |= {
            one.body.job_id: named[name].cid
            for one in paid
            if (name := (one.body.owner, one.body.container_cid or "")) in attached
        }
        posts = await to_thread.run_sync(_posts_of, allowed, cids)
        relay_ids = await posts_sql.insert(connection, self.registry.address, posts, allowances)
        if relay_ids is None:
            raise Retryable("busy", "another request used up the owner's budget")
        await objects_sql.release_many(connection, [container_key(job_id) for job_id, _, _ in inline])
        relays = {post.job_id: relay_id for post, relay_id in zip(posts, relay_ids, strict=True)}
        return [_record_of(one, relays) for one in allowed]


def _named(lines: Sequence[CheckedLine]) -> list[Named]:
    """Return the uploads that the lines name."""
    bodies = [one.paid.body for one in lines if isinstance(one, PaidLine)]
    return sorted({(body.owner, body.container_cid) for body in bodies if body.container_cid is not None})


def _checked_further(
    one: CheckedLine, facts: ChainFacts, uploads: Mapping[Named, FileRow], posted: set[bytes]
) -> CheckedLine:
    """Check a line against the chain, its upload and the earlier lines' jobs in `posted`."""
    if isinstance(one, LineRecord):
        return one
    body = one.paid.body
    fault = next(facts.faults(body), None)
    if fault is None and body.container_cid is not None:
        fault = upload_fault(body, uploads.get((body.owner, body.container_cid)))
    if fault is not None:
        return one.failed(fault)
    if body.job_id in posted:
        message = "another line of the file has the same job_id"
        return LineRecord(one.line, body.job_id, None, "duplicate_job_id", message)
    posted.add(body.job_id)
    return one


def _posts_of(lines: Sequence[CheckedLine], cids: Mapping[bytes, str]) -> list[Post]:
    """Return the posts of the lines that have a stored container."""
    paid = [one.paid for one in lines if isinstance(one, PaidLine)]
    return [
        Post(one.body.job_id, one.dedupe(cid), one.calldata(cid), one.body.owner, one.amount)
        for one in paid
        if (cid := cids.get(one.body.job_id)) is not None
    ]


def _record_of(one: CheckedLine, relays: Mapping[bytes, int]) -> LineRecord:
    """Return the record of a line. If the line has no relay, its upload has expired since the check."""
    if isinstance(one, LineRecord):
        return one
    relay_id = relays.get(one.paid.body.job_id)
    if relay_id is None:
        return one.failed(UNKNOWN_UPLOAD)
    return LineRecord(one.line, one.paid.body.job_id, relay_id, None, None)
