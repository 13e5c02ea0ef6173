"""Lines of an input file: read some hundreds at a time, checked, and their containers stored.

One window is held at once, or one line when that is longer than a window. A line beyond any submission's size is passed
over without being held.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeAlias

import anyio
import attrs
from anyio import to_thread

from common.api.fields import parse_sent, try_object
from common.domains import Domains
from common.quotes import FeeTerms
from common.refusal import Refused
from coordinatord.api.files.foreign_lines import foreign
from coordinatord.api.files.inspection import BLANK
from coordinatord.api.orders.validation import (
    Fault,
    OrderBody,
    Paid,
    check_inline,
    judge,
    order_checks,
    payment_checks,
    shape_faults,
    submission_of,
)
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.pins import objects_sql
from coordinatord.storage.pins.containers import container_key
from coordinatord.storage.pins.objects_sql import NewObject
from coordinatord.storage.pins.store import PinStore

WINDOW: Final = 1 << 20
MOST_LINES: Final = 512
LONGEST_LINE: Final = 22 << 20  # a submission with the largest inline container, and its fields

# The bytes from `first` to `last` inclusive, piece by piece.
ReadRange = Callable[[int, int], AbstractAsyncContextManager[AsyncIterator[bytes]]]


@attrs.frozen(slots=True)
class InputLine:
    """`number` counts from 1, blank lines too. `text` is None when the line is too long to be a submission."""

    number: int
    text: bytes | None = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Cursor:
    """Everything before `offset`, which is `lines` lines, is done."""

    offset: int
    lines: int


@attrs.frozen(slots=True)
class LineBatch:
    """Lines that are not blank, and the cursor from which the next ones are read."""

    lines: tuple[InputLine, ...]
    end: Cursor


@attrs.frozen(slots=True)
class LineReader:
    read: ReadRange
    size: int  # of the file
    window: int = WINDOW
    most_lines: int = MOST_LINES
    longest_line: int = LONGEST_LINE

    async def read_lines(self, start: Cursor) -> LineBatch:
        """The next lines, at least one while there are any left. Raises Retryable when the store does not give
        what it holds."""
        held = bytearray()
        while start.offset + len(held) < self.size:
            await self._add_window(held, start.offset)
            at_end = start.offset + len(held) == self.size
            if at_end or b"\n" in held:
                return self._split(bytes(held), start, at_end=at_end)
            if len(held) > self.longest_line:
                return await self._pass_over(start, len(held))
        return LineBatch((), start)

    async def _add_window(self, held: bytearray, offset: int) -> None:
        first = offset + len(held)
        # Twice as much each time: a long line is not fetched in slivers.
        last = min(first + max(self.window, len(held)), self.size) - 1
        before = len(held)
        async with self.read(first, last) as pieces:
            async for piece in pieces:
                held += piece
        if len(held) - before != last + 1 - first:
            raise Retryable("pinner_unavailable", "the object store cut the input file short", "store_unavailable")

    def _split(self, held: bytes, start: Cursor, *, at_end: bool) -> LineBatch:
        """Whole lines only; the last one of the file may lack its newline."""
        lines: list[InputLine] = []
        offset, number = 0, start.lines
        while offset < len(held) and len(lines) < self.most_lines:
            newline = held.find(b"\n", offset)
            if newline < 0 and not at_end:
                break
            text = held[offset:] if newline < 0 else held[offset:newline]
            offset = len(held) if newline < 0 else newline + 1
            number += 1
            if text.strip(BLANK):
                lines.append(InputLine(number, text if len(text) <= self.longest_line else None))
        return LineBatch(tuple(lines), Cursor(start.offset + offset, number))

    async def _pass_over(self, start: Cursor, known: int) -> LineBatch:
        """To the end of a line of which `known` bytes hold no newline."""
        offset = start.offset + known
        while offset < self.size:
            ahead = bytearray()
            await self._add_window(ahead, offset)
            newline = ahead.find(b"\n")
            offset += len(ahead) if newline < 0 else newline + 1
            if newline >= 0:
                break
        return LineBatch((InputLine(start.lines + 1, None),), Cursor(offset, start.lines + 1))


@attrs.frozen(slots=True)
class Good:
    """A submission that the chain and the store may still refuse."""

    line: int
    paid: Paid

    def skipped(self, fault: Fault) -> "Skipped":
        return Skipped(self.line, self.paid.body.job_id, fault.line_code, fault.message)


@attrs.frozen(slots=True)
class Skipped:
    line: int
    job_id: bytes | None
    code: str
    message: str


Checked: TypeAlias = Good | Skipped


@attrs.frozen(slots=True)
class LineChecks:
    """Checks of lines by themselves, made in a thread: recovering signatures costs most. `registry` is the job
    registry's address; `terms` and `now` are those of the moment of processing."""

    domains: Domains
    registry: bytes
    endpoint: str
    terms: FeeTerms
    now: float

    def check(self, lines: Sequence[InputLine]) -> list[Checked]:
        read = [self._read(line) for line in lines]
        whole = [one.paid for one in read if isinstance(one, Good)]
        payment = payment_checks(self.domains, self.registry, self.terms)
        return judged(read, judge(whole, [*order_checks(self.domains, self.now), *payment, check_inline]))

    def _read(self, line: InputLine) -> Checked:
        """Good: a whole submission, to be judged."""
        if line.text is None:
            return Skipped(line.number, None, "invalid_line", "the line is longer than any submission")
        try:
            values = parse_sent(line.text)
        except Refused as wrong:
            return Skipped(line.number, None, "invalid_json", wrong.message)
        if not isinstance(values, dict):
            return Skipped(line.number, None, "invalid_json", "the line is not a JSON object")
        url = values.get("url")
        if url is not None and url != self.endpoint:
            return Skipped(line.number, None, "endpoint_mismatch", f"url is not the batch's endpoint {self.endpoint}")
        message = foreign(
            body=isinstance(values.get("body"), dict),
            signed=values.get("signature") is not None,
            named=values.get("custom_id") is not None,
        )
        if message is not None:
            return Skipped(line.number, None, "invalid_line", message)
        try:
            order = submission_of(_read_order(values))
        except Refused as wrong:
            return Skipped(line.number, None, wrong.code or "invalid_line", wrong.message)
        if not isinstance(order, Paid):
            message = "; ".join([WHOLE, *(fault.message for fault in _unpaid(values))])
            return Skipped(line.number, order.body.job_id, "container_required", message)
        return Good(line.number, order)


WHOLE: Final = (
    "a line must be a whole submission: the order's nine terms, owner, job_id, signature, auth_sig, amount and"
    " container or container_cid"
)


def _read_order(values: Mapping[str, object]) -> OrderBody:
    """The order of a line. A line is no question to the market: one without rates lacks them, and all else that it
    lacks is named beside them."""
    read = try_object(OrderBody, values)
    if isinstance(read, OrderBody):
        for fault in shape_faults(read):
            raise fault
        return read
    told = Refused.together([*read, *_unpaid(values)])
    is_order = values.get("signature") is not None and (values.get("rate_in"), values.get("rate_out")) != (None, None)
    raise told if is_order else Refused(f"{WHOLE}; {told.message}", told.param, told.code)


def _unpaid(values: Mapping[str, object]) -> list[Refused]:
    """What a line lacks of the payment and the container."""
    lacking = [name for name in ("auth_sig", "amount") if values.get(name) is None]
    if values.get("container") is None and values.get("container_cid") is None:
        lacking.append("container or container_cid")
    return [Refused(f"{name} is required", name) for name in lacking]


def judged(checked: Sequence[Checked], verdicts: Sequence[Fault | None]) -> list[Checked]:
    """The lines with those skipped that failed a check. `verdicts`: of the good ones."""
    left = iter(verdicts)

    def after(one: Good) -> Checked:
        fault = next(left)
        return one if fault is None else one.skipped(fault)

    return [after(one) if isinstance(one, Good) else one for one in checked]


_AT_ONCE: Final = 16  # requests to the store: half of what a process keeps open


@attrs.frozen(slots=True)
class LineContainers:
    """Containers that lines bring along, stored many at a time before their posts are queued."""

    database: Database
    pins: PinStore

    async def store(self, contents: Sequence[tuple[bytes, bytes, bytes]]) -> dict[bytes, str]:
        """Content ids of (job id, container, owner) each. They count for their owners and are not refused: the file
        that they came in was. They stay held until the caller releases them with its own
        writing; after a crash the janitor decides. Raises Retryable when not all of them are stored."""
        if not contents:
            return {}
        new = await to_thread.run_sync(_objects_of, contents)
        async with self.database.connection() as connection:
            known = await objects_sql.hold_many(connection, new)
        stored: dict[str, str] = {}
        errors: list[Retryable] = []
        left = zip(new, contents, strict=True)

        async def put_some() -> None:
            for one, (_, content, _) in left:
                try:
                    stored[one.key] = await self._stored(one.key, content, known)
                except Retryable as error:
                    errors.append(error)

        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(_AT_ONCE, len(contents))):
                    tasks.start_soon(put_some)
        finally:
            if stored:  # what was stored need not be stored again
                with anyio.move_on_after(10, shield=True):
                    async with self.database.connection() as connection:
                        await objects_sql.set_cids(connection, stored)
        if errors:
            raise errors[0]
        return {job_id: stored[container_key(job_id)] for job_id, _, _ in contents}

    async def _stored(self, key: str, content: bytes, known: dict[str, str | None]) -> str:
        if key not in known:
            raise Retryable("pinner_unavailable", "the same object is being removed; try again", "store_unavailable", 2)
        cid = known[key]
        if cid is not None and await self.pins.holds(key):
            return cid
        return (await self.pins.put(key, content)).cid


def _objects_of(contents: Sequence[tuple[bytes, bytes, bytes]]) -> list[NewObject]:
    return [
        NewObject(container_key(job_id), job_id, len(content), hashlib.sha256(content).digest(), owner)
        for job_id, content, owner in contents
    ]
