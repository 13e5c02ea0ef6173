"""Parse the form of an upload while it arrives: the field `purpose`, then one file. The fields `expires_after[...]` may
be anywhere.

The file's bytes are passed on and not stored. Only the end of the form shows whether the form is well-formed, so a
caller must read `pieces` to the end before it trusts any piece.
"""

import re
from collections.abc import AsyncIterator
from typing import Final

import attrs
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from common.refusal import Refused

# Maximum bytes of the form apart from the file's content.
FORM_OVERHEAD_BYTES: Final = 1 << 16
_MAX_PART_HEADERS: Final = 8
_MAX_PART_HEADER_BYTES: Final = 2048
_MAX_FIELD_BYTES: Final = 64
_MAX_FILENAME_CHARS: Final = 255
EXPIRES_AFTER_FIELDS: Final = {"expires_after[anchor]": "anchor", "expires_after[seconds]": "seconds"}
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class FileTooLarge(Exception):
    """Error for a file part above the size limit."""


@attrs.frozen(slots=True)
class PartBegin:
    name: str
    filename: str | None


@attrs.frozen(slots=True)
class PartData:
    data: bytes


@attrs.frozen(slots=True)
class PartEnd:
    pass


FormEvent = PartBegin | PartData | PartEnd


def read_form_boundary(content_type: str) -> bytes:
    """Return the boundary of a multipart/form-data request. Raise Refused for any other content type."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise Refused("the body must be multipart/form-data")
    return boundary


class FormParser:
    """Parses the bytes of a form into events. Raises Refused for a malformed boundary or form."""

    def __init__(self, boundary: bytes) -> None:
        # True when the closing boundary has been read.
        self.is_complete = False
        self._events: list[FormEvent] = []
        self._field, self._value = bytearray(), bytearray()
        self._disposition: str | None = None
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": lambda data, start, end: self._events.append(PartData(data[start:end])),
                    "on_part_end": lambda: self._events.append(PartEnd()),
                    "on_end": self._on_form_end,
                },
                max_header_count=_MAX_PART_HEADERS,
                max_header_size=_MAX_PART_HEADER_BYTES,
            )
        except FormParserError as error:
            raise _malformed_form_error() from error

    def feed(self, data: bytes) -> list[FormEvent]:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed_form_error() from error
        events, self._events = self._events, []
        return events

    def _on_part_begin(self) -> None:
        self._disposition = None

    def _on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            if self._disposition is not None:
                raise Refused("a part of the form has two content-disposition headers")
            self._disposition = self._value.decode("latin-1")
        self._field.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._disposition)
        if kind != b"form-data" or b"name" not in options:
            raise Refused("each part of the form must have the content-disposition form-data with a name")
        filename = options.get(b"filename")
        self._events.append(
            PartBegin(_decode_text(options[b"name"]), None if filename is None else _decode_text(filename))
        )

    def _on_form_end(self) -> None:
        self.is_complete = True


class UploadForm:
    """Form of one upload. Call `read_purpose`, then `read_filename`, then `pieces`.

    `expires_after` contains the form's `expires_after[...]` fields, and is complete once `pieces` has ended.
    """

    def __init__(
        self, boundary: bytes, body: AsyncIterator[bytes], max_bytes: int, declared_bytes: int | None = None
    ) -> None:
        """`declared_bytes` is the length of the whole form, if the client sent the length. `max_size` is the largest
        possible size of the file."""
        self._parser = FormParser(boundary)
        self._events = self._read_events(body)
        self._max_bytes = max_bytes
        self.expires_after: dict[str, str] = {}
        self.max_size = max_bytes if declared_bytes is None else min(declared_bytes, max_bytes)

    async def read_purpose(self) -> str:
        """Return the text of `purpose`, which must be the first part, not counting `expires_after[...]`."""
        part = await self._next_part_after_expiry("purpose")
        if part.name != "purpose":
            raise Refused("purpose must be the first part of the form, before the file", "purpose")
        return await self._read_field("purpose", "invalid_purpose")

    async def read_filename(self) -> str:
        """Return the file's name. The file must be the second part of the form, not counting `expires_after[...]`."""
        part = await self._next_part_after_expiry("file")
        if part.name != "file":
            raise _unexpected_part_error(part)
        if part.filename is None:
            raise Refused("the file part must have a filename", "file")
        return _base_name(part.filename)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the file's bytes. Raise Refused after the last byte if the form does not end correctly."""
        size = 0
        async for event in self._events:
            if isinstance(event, PartEnd):
                break
            if isinstance(event, PartData):
                size += len(event.data)
                if size > self._max_bytes:
                    raise FileTooLarge
                yield event.data
        async for event in self._events:
            if isinstance(event, PartBegin) and event.name in EXPIRES_AFTER_FIELDS:
                await self._record_expiry(event)
            elif isinstance(event, PartBegin):
                raise _unexpected_part_error(event)

    async def _next_part_after_expiry(self, expected_name: str) -> PartBegin:
        """Record `expires_after[...]` parts, and return the first other part."""
        while (part := await self._next_part(expected_name)).name in EXPIRES_AFTER_FIELDS:
            await self._record_expiry(part)
        return part

    async def _record_expiry(self, part: PartBegin) -> None:
        if EXPIRES_AFTER_FIELDS[part.name] in self.expires_after:
            raise Refused(f"the form has more than one part {part.name}", part.name)
        self.expires_after[EXPIRES_AFTER_FIELDS[part.name]] = await self._read_field(part.name)

    async def _read_field(self, name: str, code: str | None = None) -> str:
        """Return the text of the current part."""
        value = b""
        async for event in self._events:
            if isinstance(event, PartEnd):
                break
            if isinstance(event, PartData):
                value += event.data
            if len(value) > _MAX_FIELD_BYTES:
                raise Refused(f"{name} must be at most {_MAX_FIELD_BYTES} bytes", name, code)
        return _decode_text(value)

    async def _next_part(self, expected_name: str) -> PartBegin:
        async for event in self._events:
            if isinstance(event, PartBegin):
                return event
        raise Refused(f"the form has no part {expected_name}", expected_name)

    async def _read_events(self, body: AsyncIterator[bytes]) -> AsyncIterator[FormEvent]:
        async for piece in body:
            for event in self._parser.feed(piece):
                yield event
        if not self._parser.is_complete:
            raise _malformed_form_error()


def _base_name(filename: str) -> str:
    """Return the client's file name without folders. The name is displayed, never opened."""
    name = re.split(r"[/\\]", filename)[-1]
    if not name or len(name) > _MAX_FILENAME_CHARS or _CONTROL_CHARACTER.search(filename):
        raise Refused(
            f"filename must be 1 to {_MAX_FILENAME_CHARS} characters, none of them a control character", "file"
        )
    return name


def _decode_text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _malformed_form_error() from None


def _unexpected_part_error(part: PartBegin) -> Refused:
    if part.name in ("purpose", "file"):
        return Refused(f"the form has more than one part {part.name}", part.name)
    return Refused("the form has a part other than purpose, file and expires_after[…]", part.name[:_MAX_FIELD_BYTES])


def _malformed_form_error() -> Refused:
    return Refused("the body is not well-formed multipart/form-data")
