"""Routes of files, for their owner only: upload, description and content."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

import attrs

from common.api import limits
from common.api.batches import ErrorLine, OutputLine
from common.api.fields import Schema, Text, read_object
from common.api.files import File, FileDetails, Purpose
from common.api.shapes import Digits
from common.api.worked_order import FILE_ID
from common.refusal import Refused
from coordinatord.api.files.files import ExpiresAfter, FileStore
from coordinatord.api.files.files_sql import FileRow
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.http import responses
from coordinatord.http.byte_ranges import ByteRange, Unsatisfiable, byte_range
from coordinatord.http.responses import Response
from coordinatord.http.routing import STORE, Form, Parameter, Reply, Request, Route, malformed
from coordinatord.http.streaming import StreamedResponse
from coordinatord.http.upload_forms import EXPIRES_AFTER, UploadForm
from coordinatord.http.uploads import TransferLimits

UPLOADED: Final[tuple[Purpose, ...]] = ("input", "result", "batch")
_TEXT: Final = Text(limits.HEADER_VALUE_BYTES)
# Any text is accepted, and an unknown id is not found.
_ID: Final = {"id": Parameter(_TEXT, "id of the file", example=FILE_ID)}
_PARTS: Final[dict[str, Schema]] = {
    "purpose": {"type": "string", "enum": list(UPLOADED), "description": "what the file is"},
    "file": {
        "type": "string",
        "format": "binary",
        "description": (
            "the bytes, with a filename: at most MAX_BLOB_BYTES (200 MiB unless the operator says otherwise)"
        ),
    },
    "expires_after[anchor]": {"type": "string", "enum": ["created_at"], "description": "where the time counts from"},
    "expires_after[seconds]": {
        "type": "string",
        "pattern": "^[0-9]{1,10}$",
        "description": "the operator's retention period, in seconds: any other value is refused",
    },
}
_OCTETS: Final = "application/octet-stream"
_JSONL: Final = "application/jsonl"
_LINES: Final = (OutputLine[Digits], ErrorLine)
# Of one address, and of one wallet. Each holds a connection to the store for as long as its client reads.
MAX_DOWNLOADS: Final = 16


@attrs.frozen(slots=True)
class FileRoutes:
    files: FileStore
    downloads: TransferLimits = attrs.field(factory=lambda: TransferLimits(MAX_DOWNLOADS, MAX_DOWNLOADS, "download"))

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/files",
                id="uploadFile",
                tag="Files",
                about="Upload a container, a result, or the lines of a batch",
                details=(
                    "A form: part `purpose` first, then part `file`. `input` is a sealed container, which must have the"
                    " form of one (`bad_container`); `result` a sealed result, taken as it is; `batch` the lines of a"
                    " batch: each a whole POST /v1/jobs submission. The file is gone"
                    " after 300 s unless a job, a settle or a batch uses it; then it is kept for the operator's"
                    " retention period, from that use on. `expires_after` is accepted where it says just that period,"
                    " with the anchor `created_at`."
                ),
                handler=self.upload,
                form=Form(_PARTS, required=("purpose", "file")),
                session=True,
                replies=(
                    Reply(200, shape=File, about="The file"),
                    *malformed("invalid_purpose", "empty_file", "too_many_lines", "bad_container"),
                    Reply(401, "invalid_session"),
                    Reply(413, "file_too_large"),
                    *STORE,
                ),
            ),
            Route(
                method="GET",
                path="/v1/files/{id}",
                id="getFile",
                tag="Files",
                about="Read the description of a file",
                handler=self.one,
                segments=_ID,
                session=True,
                replies=(
                    Reply(200, shape=File, about="The file"),
                    Reply(401, "invalid_session"),
                    Reply(404),
                ),
            ),
            Route(
                method="GET",
                path="/v1/files/{id}/content",
                id="getFileContent",
                tag="Files",
                about="Read a file's bytes, or one range of them",
                details=(
                    "A batch's output file has an `OutputLine` for each job that settled, its error file an `ErrorLine`"
                    " for each other line of the input, all JSONL. `range` takes one range of bytes; with `if-range`"
                    " and another etag the whole file is the answer."
                ),
                handler=self.content,
                segments=_ID,
                headers={
                    "range": Parameter(_TEXT, "one range of bytes, as `bytes=0-1023`"),
                    "if-range": Parameter(_TEXT, "the etag of the file that the range is of"),
                },
                session=True,
                replies=(
                    Reply(200, media=(_OCTETS, _JSONL), lines=_LINES, about="The bytes", headers=("etag",)),
                    Reply(206, media=(_OCTETS, _JSONL), about="The range", headers=("etag", "content-range")),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    Reply(416, headers=("content-range",)),
                    Reply(503, "object_missing"),
                    *STORE,
                ),
            ),
        ]

    async def upload(self, request: Request) -> Response:
        form: UploadForm = request.body
        purpose = read_purpose(await form.purpose())
        filename = await form.filename()
        row = await self.files.upload(request.owner, purpose, filename, self._pieces(form), form.max_size)
        return responses.ok(_file(row))

    async def _pieces(self, form: UploadForm) -> AsyncIterator[bytes]:
        """Yield the file's bytes. After the last one, raise Refused for an `expires_after` that differs from the
        retention."""
        # Both fields came before the file, so a wrong value is rejected before the file is received.
        if len(form.expires_after) == len(EXPIRES_AFTER):
            self._check_end(form)
        async for piece in form.pieces():
            yield piece
        self._check_end(form)

    def _check_end(self, form: UploadForm) -> None:
        if form.expires_after:
            wanted = read_object(ExpiresAfter, form.expires_after, "expires_after.")
            wanted.check(self.files.retention_seconds, "expires_after")

    async def one(self, request: Request) -> Response:
        row = await self.files.find(request.path["id"], request.owner)
        return responses.ok(_file(row)) if row is not None else responses.not_found(NoSuchObject("file"))

    async def content(self, request: Request) -> Response | StreamedResponse:
        row = await self.files.find(request.path["id"], request.owner)
        if row is None:
            return responses.not_found(NoSuchObject("file"))
        etag = f'"{row.cid}"'
        try:
            span = _wanted(request.headers, etag, row.bytes)
        except Unsatisfiable:
            return responses.range_not_satisfiable(row.bytes)
        headers = (
            (b"content-type", (_JSONL if row.purpose == "batch" else _OCTETS).encode()),
            (b"content-disposition", _disposition(row.filename)),
            (b"x-content-type-options", b"nosniff"),
            (b"accept-ranges", b"bytes"),
            (b"cache-control", b"private, no-cache"),
            (b"etag", etag.encode()),
        )
        if span is None:
            return StreamedResponse(200, headers, row.bytes, lambda: self._opened(request, row))
        first, last = span.first, span.last
        content_range = (b"content-range", f"bytes {first}-{last}/{row.bytes}".encode())
        return StreamedResponse(
            206, (*headers, content_range), last - first + 1, lambda: self._opened(request, row, first, last)
        )

    @asynccontextmanager
    async def _opened(
        self, request: Request, row: FileRow, first: int = 0, last: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        with self.downloads.one(request.caller, request.owner):
            async with self.files.open(row, first, last) as pieces:
                yield pieces


def read_purpose(text: str) -> Purpose:
    for purpose in UPLOADED:
        if text == purpose:
            return purpose
    raise Refused(f"purpose must be one of {', '.join(UPLOADED)}", "purpose", "invalid_purpose")


def _wanted(headers: Mapping[str, str], etag: str, size: int) -> ByteRange | None:
    """Return the requested range, or None for the whole file. An If-Range with another etag requests the whole file."""
    if headers.get("if-range", etag) != etag:
        return None
    return byte_range(headers.get("range"), size)


def _disposition(filename: str) -> bytes:
    """Return a Content-Disposition header with the full name, and with an ASCII name for old clients.

    In the ASCII name, `_` replaces characters that would end or escape the quoted string.
    """
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%;' else "_" for c in filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}".encode()


def _file(row: FileRow) -> File:
    return File(
        id=row.id,
        bytes=row.bytes,
        created_at=int(row.created_at.timestamp()),
        expires_at=int(row.expires_at.timestamp()),
        filename=row.filename,
        purpose=row.purpose,
        status="processed" if row.purpose == "batch_output" else "uploaded",
        svc=FileDetails(row.cid, row.lines),
    )
