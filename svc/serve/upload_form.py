"""Multipart forms of `POST /v1/files`: fields kept, the file's bytes written to the disk as they arrive."""

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import anyio
import attrs
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from svc.serve.exchange import LocalRequest
from svc.serve.problems import Problem, invalid

LONGEST_FILE: Final = 209_715_200  # as coordinators take them
_LONGEST_FIELD: Final = 1024
_LONGEST_HEADER: Final = 4096


@attrs.define
class FileForm:
    fields: dict[str, str] = attrs.field(factory=dict)
    filename: str | None = None


class _Parts:
    """What python_multipart tells of a form, with the file's bytes gathered for whoever writes them."""

    def __init__(self) -> None:
        self.form = FileForm()
        self.pending = bytearray()
        self.whole = False
        self._name, self._value, self._header = "", bytearray(), bytearray()
        self._disposition = b""
        self._is_file = False

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_header_field": lambda data, start, end: self._of_header(self._header, data[start:end]),
            "on_header_value": lambda data, start, end: self._of_header(self._value, data[start:end]),
            "on_header_end": self._header_ends,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_part_end": self._part_ends,
            "on_end": self._ends,
        }

    def _of_header(self, part: bytearray, data: bytes) -> None:
        part += data
        if len(part) > _LONGEST_HEADER:
            raise invalid(f"a header of the form has at most {_LONGEST_HEADER} bytes")

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = self._name == "file"
        if self._is_file:
            if self.form.filename is not None:
                raise invalid("the form must have one part named file", "file")
            self.form.filename = options.get(b"filename", b"upload.jsonl").decode("utf-8", "replace")[-255:]
        self._disposition = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.pending += data[start:end]
            return
        known = self.form.fields.get(self._name, "") + data[start:end].decode("utf-8", "replace")
        if len(known) > _LONGEST_FIELD or len(self.form.fields) > 16:
            raise invalid(f"a field of the form has at most {_LONGEST_FIELD} signs, and the form 16 of them")
        self.form.fields[self._name] = known

    def _part_ends(self) -> None:
        self._is_file = False

    def _ends(self) -> None:
        self.whole = True


async def read_form(asked: LocalRequest, partial: Path) -> FileForm:
    """The form's fields; its file's content goes to `partial`. Raises Problem."""
    kind, options = parse_options_header(asked.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise invalid("the body must be multipart/form-data")
    parts = _Parts()
    size = 0
    try:
        parser = MultipartParser(boundary, parts.callbacks())  # type: ignore[arg-type] # a TypedDict of the same keys
        await anyio.Path(partial).touch(mode=0o600)
        async with await anyio.open_file(partial, "wb") as target, aclosing(asked.pieces()) as pieces:
            async for piece in pieces:
                parser.write(piece)
                size += len(parts.pending)
                if size > LONGEST_FILE:
                    raise Problem(413, f"a file has at most {LONGEST_FILE} bytes", code="file_too_large", param="file")
                await target.write(bytes(parts.pending))
                parts.pending.clear()
    except FormParserError:
        raise invalid("the body must be a multipart form") from None
    if not parts.whole:
        raise invalid("the form ends before its last boundary")
    return parts.form
