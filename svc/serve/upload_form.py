"""Read the multipart form of `POST /v1/files`. The file is written to disk as it arrives."""

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import anyio
import attrs
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from svc.serve.exchange import LocalRequest
from svc.serve.problems import Problem, invalid_request

MAX_FILE_BYTES: Final = 209_715_200  # the coordinator's limit
_MAX_FIELD_LENGTH: Final = 1024
_MAX_FIELDS: Final = 16
_MAX_HEADER_BYTES: Final = 4096


@attrs.define
class FileForm:
    """Fields of the form, and the name of its file."""

    fields: dict[str, str] = attrs.field(factory=dict)
    filename: str | None = None


class _FormCallbacks:
    """Callbacks for python_multipart. The file's content is added to `pending`, which `read_form` writes to disk."""

    def __init__(self) -> None:
        self.form = FileForm()
        self.pending = bytearray()
        self.complete = False
        self._name, self._value, self._header = "", bytearray(), bytearray()
        self._disposition = b""
        self._is_file = False

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_header_field": lambda data, start, end: self._extend_header(self._header, data[start:end]),
            "on_header_value": lambda data, start, end: self._extend_header(self._value, data[start:end]),
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_end,
            "on_part_data": self._on_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_form_end,
        }

    def _extend_header(self, part: bytearray, data: bytes) -> None:
        part += data
        if len(part) > _MAX_HEADER_BYTES:
            raise invalid_request(f"a header of the form must have at most {_MAX_HEADER_BYTES} bytes")

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _on_headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = self._name == "file"
        if self._is_file:
            if self.form.filename is not None:
                raise invalid_request("the form must have only one part named file", "file")
            self.form.filename = options.get(b"filename", b"upload.jsonl").decode("utf-8", "replace")[-255:]
        self._disposition = b""

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.pending += data[start:end]
            return
        value = self.form.fields.get(self._name, "") + data[start:end].decode("utf-8", "replace")
        self.form.fields[self._name] = value
        if len(value) > _MAX_FIELD_LENGTH or len(self.form.fields) > _MAX_FIELDS:
            raise invalid_request(f"a form must have at most {_MAX_FIELDS} fields of {_MAX_FIELD_LENGTH} characters")

    def _on_part_end(self) -> None:
        self._is_file = False

    def _on_form_end(self) -> None:
        self.complete = True


async def read_form(request: LocalRequest, partial: Path) -> FileForm:
    """Return the form's fields, and write the content of its file to `partial`. Raises Problem."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise invalid_request("the body must be multipart/form-data")
    parts = _FormCallbacks()
    size = 0
    try:
        parser = MultipartParser(boundary, parts.callbacks())  # type: ignore[arg-type] # a TypedDict of the same keys
        await anyio.Path(partial).touch(mode=0o600)
        async with await anyio.open_file(partial, "wb") as target, aclosing(request.read_chunks()) as chunks:
            async for chunk in chunks:
                parser.write(chunk)
                size += len(parts.pending)
                if size > MAX_FILE_BYTES:
                    raise Problem(
                        413, f"the file must have at most {MAX_FILE_BYTES} bytes", code="file_too_large", param="file"
                    )
                await target.write(bytes(parts.pending))
                parts.pending.clear()
    except FormParserError:
        raise invalid_request("the body must be a multipart form") from None
    if not parts.complete:
        raise invalid_request("the form ends before its last boundary")
    return parts.form
