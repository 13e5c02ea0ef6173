"""Uploads: multipart forms read as they arrive, within limits of rate, number and memory.

An upload's share of that memory grows with what has arrived of it, up to what one may hold. By its declared length,
sixteen heads without a body would take it all.
"""

import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio
import attrs
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from common.daemon.asgi import RawHeaders, Receive, first_header
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.http import responses
from coordinatord.http.bodies import BodyBudget, BudgetShare, CallerGone, Unacceptable, refuse_encoded

# multipart/form-data as uploads send it, read as it comes: the field `purpose`, then one file; and anywhere the fields
# `expires_after[...]`.
#
# Nothing of it is kept: the file's bytes are handed on as they arrive. What the form holds after the file decides
# whether it was well-formed, so a reader must take `pieces` to their end before it believes any of them.

OVERHEAD_BYTES: Final = 1 << 16  # of a form beside its file's bytes
_MOST_HEADERS: Final = 8
_LONGEST_HEADER: Final = 2048
_LONGEST_FIELD: Final = 64
_LONGEST_NAME: Final = 255
EXPIRES_AFTER: Final = {"expires_after[anchor]": "anchor", "expires_after[seconds]": "seconds"}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class FileTooLarge(Exception):
    """The file part is over the limit."""


@attrs.frozen(slots=True)
class PartBegins:
    name: str
    filename: str | None


@attrs.frozen(slots=True)
class PartData:
    data: bytes


@attrs.frozen(slots=True)
class PartEnds:
    pass


FormEvent = PartBegins | PartData | PartEnds


def boundary_of(content_type: str) -> bytes:
    """Of a multipart/form-data request; Refused for any other."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise Refused("the body must be multipart/form-data")
    return boundary


class FormParser:
    """Events of a form from its bytes. Refuses what is no form."""

    def __init__(self, boundary: bytes) -> None:
        self.whole = False  # the closing boundary was seen
        self._events: list[FormEvent] = []
        self._field, self._value = bytearray(), bytearray()
        self._disposition: str | None = None
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": lambda data, start, end: self._events.append(PartData(data[start:end])),
                    "on_part_end": lambda: self._events.append(PartEnds()),
                    "on_end": self._form_ends,
                },
                max_header_count=_MOST_HEADERS,
                max_header_size=_LONGEST_HEADER,
            )
        except FormParserError as wrong:
            raise _malformed() from wrong

    def feed(self, data: bytes) -> list[FormEvent]:
        try:
            self._parser.write(data)
        except FormParserError as wrong:
            raise _malformed() from wrong
        events, self._events = self._events, []
        return events

    def _part_begins(self) -> None:
        self._disposition = None

    def _header_ends(self) -> None:
        if self._field.lower() == b"content-disposition":
            if self._disposition is not None:
                raise Refused("a part has two content-dispositions")
            self._disposition = self._value.decode("latin-1")
        self._field.clear()
        self._value.clear()

    def _headers_end(self) -> None:
        kind, options = parse_options_header(self._disposition)
        if kind != b"form-data" or b"name" not in options:
            raise Refused("a part of the form has no name")
        filename = options.get(b"filename")
        self._events.append(PartBegins(_text(options[b"name"]), None if filename is None else _text(filename)))

    def _form_ends(self) -> None:
        self.whole = True


class UploadForm:
    """The form of one upload, from the pieces of its body. Read `purpose`, then `filename`, then `pieces`.

    `expires_after` is asked of the form's own `expires_after[...]`, by their names, when its end has come."""

    def __init__(
        self, boundary: bytes, body: AsyncIterator[bytes], most_bytes: int, declared: int | None = None
    ) -> None:
        """`declared`: the length of the whole form, if its sender told it."""
        self._parser = FormParser(boundary)
        self._events = self._read(body)
        self._most = most_bytes
        self.expires_after: dict[str, str] = {}
        self.size_at_most = most_bytes if declared is None else min(declared, most_bytes)

    async def purpose(self) -> str:
        """The first part of the form, but for `expires_after[...]`."""
        part = await self._next_field("purpose")
        if part.name != "purpose":
            raise Refused("purpose must be there, before the file", "purpose")
        return await self._field("purpose", "invalid_purpose")

    async def filename(self) -> str:
        """Of the file, which is the second part, but for `expires_after[...]`."""
        part = await self._next_field("file")
        if part.name != "file":
            raise _unexpected(part)
        if part.filename is None:
            raise Refused("the file part must carry a filename", "file")
        return _plain_name(part.filename)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The file's bytes. Refuses, after the last of them, a form that does not end there."""
        size = 0
        async for event in self._events:
            if isinstance(event, PartEnds):
                break
            if isinstance(event, PartData):
                size += len(event.data)
                if size > self._most:
                    raise FileTooLarge
                yield event.data
        async for event in self._events:
            if isinstance(event, PartBegins) and event.name in EXPIRES_AFTER:
                await self._note(event)
            elif isinstance(event, PartBegins):
                raise _unexpected(event)

    async def _next_field(self, wanted: str) -> PartBegins:
        while (part := await self._next_part(wanted)).name in EXPIRES_AFTER:
            await self._note(part)
        return part

    async def _note(self, part: PartBegins) -> None:
        if EXPIRES_AFTER[part.name] in self.expires_after:
            raise Refused(f"the form has more than one part {part.name}", part.name)
        self.expires_after[EXPIRES_AFTER[part.name]] = await self._field(part.name)

    async def _field(self, name: str, code: str | None = None) -> str:
        """The text of the part that has begun."""
        value = b""
        async for event in self._events:
            if isinstance(event, PartEnds):
                break
            if isinstance(event, PartData):
                value += event.data
            if len(value) > _LONGEST_FIELD:
                raise Refused(f"{name} must be at most {_LONGEST_FIELD} bytes", name, code)
        return _text(value)

    async def _next_part(self, wanted: str) -> PartBegins:
        async for event in self._events:
            if isinstance(event, PartBegins):
                return event
        raise Refused(f"the form has no part {wanted}", wanted)

    async def _read(self, body: AsyncIterator[bytes]) -> AsyncIterator[FormEvent]:
        async for piece in body:
            for event in self._parser.feed(piece):
                yield event
        if not self._parser.whole:
            raise _malformed()


def _plain_name(filename: str) -> str:
    """What a client calls its file, without the folders that some send along: a name is shown, never opened."""
    name = re.split(r"[/\\]", filename)[-1]
    if not name or len(name) > _LONGEST_NAME or _CONTROL.search(filename):
        raise Refused(f"filename must be 1 to {_LONGEST_NAME} characters, none of them a control character", "file")
    return name


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _malformed() from None


def _unexpected(part: PartBegins) -> Refused:
    if part.name in ("purpose", "file"):
        return Refused(f"the form has more than one part {part.name}", part.name)
    return Refused("the form has a part that is none of purpose, file and expires_after[…]", part.name[:_LONGEST_FIELD])


def _malformed() -> Refused:
    return Refused("the body is not a well-formed form")


HELD_BYTES: Final = 16 << 20  # the most that one upload holds on its way through
BEGUN_BYTES: Final = 1 << 18  # and the least, for what waits for it in the socket's inbox
_GRACE: Final = 5.0  # seconds of waiting before the least rate counts: slow starts are the network's
_PIECE_BYTES: Final = 1 << 19
_DRAIN_BYTES: Final = 4 << 20
_DRAIN_SECONDS: Final = 2.0


class UploadsAtOnce:
    """How many uploads are under way: of each caller, and of each wallet from wherever it calls."""

    def __init__(self, of_caller: int, of_wallet: int) -> None:
        self._most = {"address": of_caller, "wallet": of_wallet}
        self._under_way: dict[tuple[str, str | bytes], int] = {}  # of those who have any

    @contextmanager
    def one(self, caller: str, wallet: bytes) -> Iterator[None]:
        """Retryable `busy` where there are as many as there may be."""
        keys: tuple[tuple[str, str | bytes], ...] = (("address", caller), ("wallet", wallet))
        for whose, key in keys:
            most = self._most[whose]
            if self._under_way.get((whose, key), 0) >= most:
                raise Retryable("busy", f"one {whose} may send {most} uploads at a time; wait for one to end")
        for under_way in keys:
            self._under_way[under_way] = self._under_way.get(under_way, 0) + 1
        try:
            yield
        finally:
            for under_way in keys:
                left = self._under_way.pop(under_way) - 1
                if left:
                    self._under_way[under_way] = left


@attrs.frozen(slots=True)
class UploadReader:
    """`budget` is what all uploads of this process may hold together; bodies that are held whole have their own."""

    budget: BodyBudget
    at_once: UploadsAtOnce
    most_bytes: int  # of the file
    least_rate: int  # bytes per second, while we wait for the caller
    stall_s: float  # the longest wait for any byte
    clock: Callable[[], float] = time.monotonic

    @asynccontextmanager
    async def reading(
        self, receive: Receive, headers: RawHeaders, caller: str, wallet: bytes
    ) -> AsyncIterator[UploadForm]:
        """The form of a request. What ends the block early is answered; the rest of the body is read and dropped as
        far as that is cheap, so that the caller is there to hear the answer."""
        refuse_encoded(headers)
        declared = first_header(headers, b"content-length")
        size = int(declared) if declared.isdecimal() else None
        body = _Body(receive, self)
        try:
            if size is not None and size > self.most_bytes + OVERHEAD_BYTES:
                raise FileTooLarge
            boundary = boundary_of(first_header(headers, b"content-type"))
            with self.at_once.one(caller, wallet):
                async with self.budget.share(caller) as share:
                    share.take(BEGUN_BYTES)
                    yield UploadForm(boundary, body.pieces(share), self.most_bytes, size)
        except FileTooLarge:
            await body.drain()
            raise Unacceptable(responses.file_too_large(self.most_bytes)) from None
        except (Refused, Retryable):
            await body.drain()
            raise


class _Body:
    """Pieces of a body as the server hands them over. Only the time in which we wait for them counts against the
    caller: when the store is slow, that is ours."""

    def __init__(self, receive: Receive, limits: UploadReader) -> None:
        self._receive = receive
        self._limits = limits
        self._ended = False
        self._size, self._waited = 0, 0.0

    async def pieces(self, share: BudgetShare) -> AsyncIterator[bytes]:
        """The first as soon as it is here, since much of what is refused is refused by it; then joined to larger ones:
        what follows costs per piece. The share grows with them."""
        wanted = 1
        while not self._ended:
            try:
                with anyio.fail_after(self._limits.stall_s) as patience:
                    piece = await self._gather(wanted, patience)
            except TimeoutError:
                raise Unacceptable(responses.body_too_slow()) from None
            if piece:
                share.take(max(0, min(self._size, HELD_BYTES) - share.held))
                yield piece
            wanted = _PIECE_BYTES

    async def _gather(self, wanted: int, patience: anyio.CancelScope) -> bytes:
        """At least so many bytes, unless the body ends. What comes renews the patience (when a tenth of it is used up:
        to set a deadline costs as much as to take a piece)."""
        clock, limits = self._limits.clock, self._limits
        pieces: list[bytes] = []
        gathered, used = 0, 0.0
        while gathered < wanted and not self._ended:
            asked = clock()
            piece = await self._next()
            waited = clock() - asked
            self._waited += waited
            used += waited
            self._size += len(piece)
            if self._size > limits.most_bytes + OVERHEAD_BYTES:
                raise FileTooLarge
            if self._waited > _GRACE and self._size < (self._waited - _GRACE) * limits.least_rate:
                raise Unacceptable(responses.body_too_slow())
            if used > limits.stall_s / 10:
                patience.deadline, used = anyio.current_time() + limits.stall_s, 0.0
            pieces.append(piece)
            gathered += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def drain(self) -> None:
        """Closing a connection with bytes unread resets it, and the answer may be lost with it."""
        left = _DRAIN_BYTES
        with anyio.move_on_after(_DRAIN_SECONDS):
            while not self._ended and left > 0:
                left -= len(await self._next())

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece
