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
from coordinatord.http.byte_ranges import ByteRange, UnsatisfiableRange, resolve_byte_range
from coordinatord.http.responses import Response
from coordinatord.http.routing import STORE_REPLIES, Form, Parameter, Reply, Request, Route, malformed_replies
from coordinatord.http.streaming import StreamedResponse
from coordinatord.http.upload_forms import EXPIRES_AFTER_FIELDS, UploadForm
from coordinatord.http.uploads import TransferLimits

UPLOAD_PURPOSES: Final[tuple[Purpose, ...]] = ("input", "result", "batch")
_ANY_TEXT: Final = Text(limits.MAX_HEADER_VALUE_BYTES)
# Any text is accepted as an id. An unknown id is answered with 404.
_ID_PARAMETER: Final = {"id": Parameter(_ANY_TEXT, "id of the file", example=FILE_ID)}
_FORM_PARTS: Final[dict[str, Schema]] = {
    "purpose": {"type": "string", "enum": list(UPLOAD_PURPOSES), "description": "purpose of the file"},
    "file": {
        "type": "string",
        "format": "binary",
        "description": (
            "content of the file, with a filename; at most MAX_BLOB_BYTES (200 MiB unless the operator changed it)"
        ),
    },
    "expires_after[anchor]": {"type": "string", "enum": ["created_at"], "description": "start of the retention period"},
    "expires_after[seconds]": {
        "type": "string",
        "pattern": "^[0-9]{1,10}$",
        "description": "the operator's retention period in seconds; any other value is rejected",
    },
}
_OCTET_STREAM: Final = "application/octet-stream"
_JSONL: Final = "application/jsonl"
_LINE_SHAPES: Final = (OutputLine[Digits], ErrorLine)
# Concurrent downloads per address and per wallet. A download holds a connection to the store until the client has read
# everything.
MAX_CONCURRENT_DOWNLOADS: Final = 16


@attrs.frozen(slots=True)
class FileRoutes:
    files: FileStore
    downloads: TransferLimits = attrs.field(
        factory=lambda: TransferLimits(MAX_CONCURRENT_DOWNLOADS, MAX_CONCURRENT_DOWNLOADS, "download")
    )

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/files",
                id="uploadFile",
                tag="Files",
                about="Upload a container, a result, or the lines of a batch",
                details=(
                    "A form: part `purpose` first, then part `file`. `input` is a sealed container, whose framing is"
                    " checked (`bad_container`). `result` is a sealed result, stored unchecked. `batch` has lines, each"
                    " a whole POST /v1/jobs submission. A file is deleted after 300 s unless a job, a settle or a batch"
                    " uses it. A used file is kept for the operator's retention period. `expires_after` may be left"
                    " out, or must state that period with the anchor `created_at`."
                ),
                handler=self.upload,
                form=Form(_FORM_PARTS, required=("purpose", "file")),
                session=True,
                replies=(
                    Reply(200, shape=File, about="The file"),
                    *malformed_replies("invalid_purpose", "empty_file", "too_many_lines", "bad_container"),
                    Reply(401, "invalid_session"),
                    Reply(413, "file_too_large"),
                    *STORE_REPLIES,
                ),
            ),
            Route(
                method="GET",
                path="/v1/files/{id}",
                id="getFile",
                tag="Files",
                about="Read the description of a file",
                handler=self.read_file,
                segments=_ID_PARAMETER,
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
                about="Read the content of a file, or one range of its bytes",
                details=(
                    "The output file of a batch is JSONL with an `OutputLine` for each settled job. The error file is"
                    " JSONL with an `ErrorLine` for each other line of the input. `range` takes one range of bytes."
                    " With another etag in `if-range`, the whole file is returned."
                ),
                handler=self.download,
                segments=_ID_PARAMETER,
                headers={
                    "range": Parameter(_ANY_TEXT, "one range of bytes, as `bytes=0-1023`"),
                    "if-range": Parameter(_ANY_TEXT, "etag of the file that the range belongs to"),
                },
                session=True,
                replies=(
                    Reply(200, media=(_OCTET_STREAM, _JSONL), lines=_LINE_SHAPES, about="The bytes", headers=("etag",)),
                    Reply(206, media=(_OCTET_STREAM, _JSONL), about="The range", headers=("etag", "content-range")),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    Reply(416, headers=("content-range",)),
                    Reply(503, "object_missing"),
                    *STORE_REPLIES,
                ),
            ),
        ]

    async def upload(self, request: Request) -> Response:
        form: UploadForm = request.body
        purpose = read_purpose(await form.read_purpose())
        filename = await form.read_filename()
        row = await self.files.upload(request.owner, purpose, filename, self._read_pieces(form), form.max_size)
        return responses.ok(_file_shape(row))

    async def _read_pieces(self, form: UploadForm) -> AsyncIterator[bytes]:
        """Yield the pieces of the file. After the last piece, raise Refused if `expires_after` differs from the
        retention period."""
        # If both fields came before the file, reject a wrong value before receiving the file.
        if len(form.expires_after) == len(EXPIRES_AFTER_FIELDS):
            self._check_expires_after(form)
        async for piece in form.pieces():
            yield piece
        self._check_expires_after(form)

    def _check_expires_after(self, form: UploadForm) -> None:
        if form.expires_after:
            expires_after = read_object(ExpiresAfter, form.expires_after, "expires_after.")
            expires_after.check(self.files.retention_seconds, "expires_after")

    async def read_file(self, request: Request) -> Response:
        row = await self.files.find(request.path["id"], request.owner)
        return responses.ok(_file_shape(row)) if row is not None else responses.not_found(NoSuchObject("file"))

    async def download(self, request: Request) -> Response | StreamedResponse:
        row = await self.files.find(request.path["id"], request.owner)
        if row is None:
            return responses.not_found(NoSuchObject("file"))
        etag = f'"{row.cid}"'
        try:
            requested = _requested_range(request.headers, etag, row.bytes)
        except UnsatisfiableRange:
            return responses.range_not_satisfiable(row.bytes)
        headers = (
            (b"content-type", (_JSONL if row.purpose == "batch" else _OCTET_STREAM).encode()),
            (b"content-disposition", _content_disposition(row.filename)),
            (b"x-content-type-options", b"nosniff"),
            (b"accept-ranges", b"bytes"),
            (b"cache-control", b"private, no-cache"),
            (b"etag", etag.encode()),
        )
        if requested is None:
            return StreamedResponse(200, headers, row.bytes, lambda: self._open_content(request, row))
        first, last = requested.first, requested.last
        content_range = (b"content-range", f"bytes {first}-{last}/{row.bytes}".encode())
        return StreamedResponse(
            206, (*headers, content_range), last - first + 1, lambda: self._open_content(request, row, first, last)
        )

    @asynccontextmanager
    async def _open_content(
        self, request: Request, row: FileRow, first: int = 0, last: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        with self.downloads.count_transfer(request.caller, request.owner):
            async with self.files.open(row, first, last) as pieces:
                yield pieces


def read_purpose(text: str) -> Purpose:
    for purpose in UPLOAD_PURPOSES:
        if text == purpose:
            return purpose
    raise Refused(f"purpose must be one of {', '.join(UPLOAD_PURPOSES)}", "purpose", "invalid_purpose")


def _requested_range(headers: Mapping[str, str], etag: str, size: int) -> ByteRange | None:
    """Return the requested range, or None for the whole file. An If-Range with another etag requests the whole file."""
    if headers.get("if-range", etag) != etag:
        return None
    return resolve_byte_range(headers.get("range"), size)


def _content_disposition(filename: str) -> bytes:
    """Return a Content-Disposition header with the full name, and with an ASCII name for old clients.

    In the ASCII name, `_` replaces characters that would end or escape the quoted string.
    """
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%;' else "_" for c in filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}".encode()


def _file_shape(row: FileRow) -> File:
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
