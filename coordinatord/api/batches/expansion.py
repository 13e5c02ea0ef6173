"""Expansion of a batch: turns the lines of its input file into records and posts, a few hundred lines at a time.

A step reads and checks lines, and stores their containers. Then one transaction queues the posts, records the lines and
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
from coordinatord.api.batches.line_reader import MAX_LINES_PER_READ, FileCursor, InputLine, LinePortion, LineReader
from coordinatord.api.batches.lines_sql import LineRecord
from coordinatord.api.batches.posts_sql import BatchPost
from coordinatord.api.batches.work_sql import BatchWork
from coordinatord.api.files import files_sql
from coordinatord.api.files.files_sql import FileRow, UploadName
from coordinatord.api.orders.faults import UNKNOWN_UPLOAD
from coordinatord.api.orders.validation import ChainFacts, read_chain_facts, upload_fault
from coordinatord.base.clock import Clock
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.locks import keep_transaction_open
from coordinatord.storage.pins import objects_sql
from coordinatord.storage.pins.containers import container_key
from coordinatord.storage.pins.store import PinStore

NOT_POSTED_MESSAGES: Final = {
    "cancelled": "the batch was cancelled before this line was posted",
    "expired": "the batch's window ended before this line was posted",
}
BUDGET_RETRY_PAUSE_S: Final = 2.0  # until the next attempt after the owner's gas budget was exhausted
MAX_READ_ATTEMPTS: Final = 3  # failed attempts in a row after which a missing input file counts as lost


log = structlog.get_logger(__name__)


@attrs.frozen(slots=True)
class BatchExpander:
    domains: Domains
    registry: JobRegistry
    allowances: LineAllowances
    pins: PinStore
    containers: LineContainers
    retention_seconds: int
    clock: Clock
    max_lines: int = MAX_LINES_PER_READ  # per step

    async def expand_next_lines(self, connection: Connection, work: BatchWork) -> None:
        """Post and record the next lines, as far as their owners' budgets allow, in the transaction that locks
        `work`."""
        start = FileCursor(work.bytes_done, work.lines_done)
        ended = work.cancelling or work.expired
        limit = (
            self.max_lines
            if ended
            else await self.allowances.count_posts_within_budget(connection, work.owner, self.max_lines)
        )
        if not limit:
            await work_sql.pause_batch(connection, work.batch_id, BUDGET_RETRY_PAUSE_S)
            return
        try:
            async with keep_transaction_open(connection):
                portion = await self._read_lines(work, start, limit)
        except Retryable as error:
            if error.code != "object_missing" or work.attempts < MAX_READ_ATTEMPTS:
                raise
            await self._end_unreadable_batch(connection, work)
            return
        if ended:
            code = "cancelled" if work.cancelling else "expired"
            late = code == "expired"
            records = [
                LineRecord(line.number, None, None, code, NOT_POSTED_MESSAGES[code], late) for line in portion.lines
            ]
        else:
            records = await self._post_lines(connection, work, portion.lines)
            if portion.lines and not records:  # no gas budget for the first line
                await work_sql.pause_batch(connection, work.batch_id, BUDGET_RETRY_PAUSE_S)
                return
            if len(records) < len(portion.lines):
                async with keep_transaction_open(connection):
                    portion = await self._read_lines(work, start, len(records))
        await lines_sql.record_lines(connection, work.batch_id, records)
        expanded = portion.next_cursor.offset >= (work.input_bytes or 0)
        await work_sql.move_cursor(
            connection, work.batch_id, portion.next_cursor.offset, portion.next_cursor.line_count, expanded=expanded
        )

    async def _read_lines(self, work: BatchWork, start: FileCursor, max_lines: int) -> LinePortion:
        if work.input_bytes is None:
            raise Retryable("pinner_unavailable", "the input file has been deleted", "object_missing")
        key = files_sql.object_key(work.input_file_id)

        def read(first: int, last: int) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
            return self.pins.read(key, first=first, last=last)

        return await LineReader(read, work.input_bytes, max_lines=max_lines).read_lines(start)

    async def _end_unreadable_batch(self, connection: Connection, work: BatchWork) -> None:
        """End a batch after the store lost its input file. Without any recorded line, the whole batch fails. Otherwise
        the remaining lines end as errors, and posted lines are followed to their end."""
        message = "the object store has lost the input file; upload it again"
        line = work.lines_done + 1 if work.lines_done else None
        error = {"code": "object_missing", "message": message, "param": "input_file_id", "line": line}
        await work_sql.set_errors(connection, work.batch_id, json.dumps({"object": "list", "data": [error]}))
        log.error("batch input file lost", batch=work.batch_id, line=line)
        if not work.lines_done:
            await work_sql.fail_batch(connection, work.batch_id)
            return
        remaining = (work.input_lines or 0) - await lines_sql.count_recorded(connection, work.batch_id)
        numbers = range(work.lines_done + 1, work.lines_done + 1 + remaining)
        await lines_sql.record_lines(
            connection, work.batch_id, [LineRecord(n, None, None, "invalid_line", message) for n in numbers]
        )
        await work_sql.move_cursor(connection, work.batch_id, work.bytes_done, numbers.stop - 1, expanded=True)

    async def _post_lines(
        self, connection: Connection, work: BatchWork, lines: Sequence[InputLine]
    ) -> list[LineRecord]:
        """Queue the posts of lines until a line exceeds its owner's gas budget. Return the record of each line before
        that line."""
        async with keep_transaction_open(connection):
            checks = LineChecks(
                self.domains, self.registry.address, work.endpoint, await self.registry.read_fees(), self.clock()
            )
            # One thread checks all lines. A second thread would add less than half of the throughput of the first,
            # because a third of the work holds the GIL.
            checked = await to_thread.run_sync(checks.check_lines, lines)
            bodies = [line.paid_order.order for line in checked if isinstance(line, PaidLine)]
            # No other checks of the chain are needed here, because the relayer simulates every post before sending.
            facts = await read_chain_facts(self.registry, self.allowances.solvency.token, bodies)
        uploads = await files_sql.find_inputs(connection, _upload_names(checked))
        posted = await lines_sql.find_posted(connection, work.batch_id, [body.job_id for body in bodies])
        checked = [_check_against_chain(line, facts, uploads, posted) for line in checked]
        allowed, allowances = await self.allowances.select_allowed_lines(connection, checked, facts.balances)
        paid = [line.paid_order for line in allowed if isinstance(line, PaidLine)]
        inline = [
            (order.order.job_id, order.order.container, order.order.owner)
            for order in paid
            if order.order.container is not None
        ]
        async with keep_transaction_open(connection):
            cids = await self.containers.store(inline)
        # From here on, statements lock the uploads and the outbox, so their rows do not change until the commit.
        used_uploads = {name: uploads[name] for name in _upload_names(allowed)}
        attached = await files_sql.attach_inputs(connection, used_uploads, self.retention_seconds)
        cids |= {
            order.order.job_id: used_uploads[name].cid
            for order in paid
            if (name := (order.order.owner, order.order.container_cid or "")) in attached
        }
        posts = await to_thread.run_sync(_build_posts, allowed, cids)
        relay_ids = await posts_sql.insert_posts(connection, self.registry.address, posts, allowances)
        if relay_ids is None:
            raise Retryable("busy", "another request has used up the owner's budget; the batch continues later")
        await objects_sql.release_holds(connection, [container_key(job_id) for job_id, _, _ in inline])
        relays = {post.job_id: relay_id for post, relay_id in zip(posts, relay_ids, strict=True)}
        return [_line_record(line, relays) for line in allowed]


def _upload_names(lines: Sequence[CheckedLine]) -> list[UploadName]:
    """Return the names of the uploads that the lines refer to."""
    bodies = [line.paid_order.order for line in lines if isinstance(line, PaidLine)]
    return sorted({(body.owner, body.container_cid) for body in bodies if body.container_cid is not None})


def _check_against_chain(
    line: CheckedLine, facts: ChainFacts, uploads: Mapping[UploadName, FileRow], posted: set[bytes]
) -> CheckedLine:
    """Check a line against the chain, its upload, and the jobs of earlier lines in `posted`. Add the line's job to
    `posted`."""
    if isinstance(line, LineRecord):
        return line
    body = line.paid_order.order
    fault = next(facts.find_faults(body), None)
    if fault is None and body.container_cid is not None:
        fault = upload_fault(body, uploads.get((body.owner, body.container_cid)))
    if fault is not None:
        return line.failure_record(fault)
    if body.job_id in posted:
        message = "another line of the file has the same job_id"
        return LineRecord(line.line, body.job_id, None, "duplicate_job_id", message)
    posted.add(body.job_id)
    return line


def _build_posts(lines: Sequence[CheckedLine], cids: Mapping[bytes, str]) -> list[BatchPost]:
    """Return the posts of the lines that have a stored container."""
    paid = [line.paid_order for line in lines if isinstance(line, PaidLine)]
    return [
        BatchPost(order.order.job_id, order.dedupe_digest(cid), order.calldata(cid), order.order.owner, order.amount)
        for order in paid
        if (cid := cids.get(order.order.job_id)) is not None
    ]


def _line_record(line: CheckedLine, relays: Mapping[bytes, int]) -> LineRecord:
    """Return the record of a line. If the line has no relay, its upload has expired since the check."""
    if isinstance(line, LineRecord):
        return line
    relay_id = relays.get(line.paid_order.order.job_id)
    if relay_id is None:
        return line.failure_record(UNKNOWN_UPLOAD)
    return LineRecord(line.line, line.paid_order.order.job_id, relay_id, None, None)
