"""Routes of files: upload, description and content, for their owner alone."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import attrs

from common.refusal import Refused
from common.wire.batches import File, FileDetails, Purpose
from common.wire.fields import Text
from coordinatord.base.errors import NoSuchObject
from coordinatord.files.files import FileStore
from coordinatord.files.sql import FileRow
from coordinatord.http import responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import STORE, Form, Parameter, Reply, Request, Route, malformed
from coordinatord.http.streaming import ByteRange, StreamedResponse, Unsatisfiable, byte_range
from coordinatord.http.uploads import UploadForm

UPLOADED: Final[tuple[Purpose, ...]] = ("input", "result", "batch")
_TEXT: Final = Text(16_384)  # as long as a request's head may be
_ID: Final = {"id": _TEXT}  # whatever it is, it names a file or none
_OCTETS: Final = "application/octet-stream"
_JSONL: Final = "application/jsonl"


@attrs.frozen(slots=True)
class FileRoutes:
    files: FileStore

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/files",
                about="Upload a container, a result, or the lines of a batch",
                handler=self.upload,
                form=Form({"purpose": {"type": "string", "enum": list(UPLOADED)}, "file": {"type": "string"}}),
                session=True,
                replies=(
                    Reply(200, shape=File),
                    *malformed("invalid_purpose", "empty_file", "too_many_lines", "bad_container"),
                    Reply(401, "invalid_session"),
                    Reply(413, "file_too_large"),
                    *STORE,
                ),
            ),
            Route(
                method="GET",
                path="/v1/files/{id}",
                about="What is known of a file",
                handler=self.one,
                segments=_ID,
                session=True,
                replies=(
                    Reply(200, shape=File),
                    Reply(401, "invalid_session"),
                    Reply(404),
                ),
            ),
            Route(
                method="GET",
                path="/v1/files/{id}/content",
                about="A file's bytes, or one range of them",
                handler=self.content,
                segments=_ID,
                headers={"range": Parameter(_TEXT, "one range of bytes"), "if-range": Parameter(_TEXT, "its etag")},
                session=True,
                replies=(
                    Reply(200, media=(_OCTETS, _JSONL)),
                    Reply(206, media=(_OCTETS, _JSONL)),
                    Reply(401, "invalid_session"),
                    Reply(404),
                    Reply(416),
                    Reply(503, "object_missing"),
                    *STORE,
                ),
            ),
        ]

    async def upload(self, request: Request) -> Response:
        form: UploadForm = request.body
        purpose = read_purpose(await form.purpose())
        filename = await form.filename()
        row = await self.files.upload(request.owner, purpose, filename, form.pieces(), form.size_at_most)
        return responses.ok(_file(row))

    async def one(self, request: Request) -> Response:
        row = await self.files.find(request.path["id"], request.owner)
        return responses.ok(_file(row)) if row is not None else responses.not_found(NoSuchObject("file"))

    async def content(self, request: Request) -> Response | StreamedResponse:
        row = await self.files.find(request.path["id"], request.owner)
        if row is None:
            return responses.not_found(NoSuchObject("file"))
        etag = f'"{row.cid}"'
        try:
            stretch = _wanted(request.headers, etag, row.bytes)
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
        if stretch is None:
            return StreamedResponse(200, headers, row.bytes, lambda: self.files.open(row))
        first, last = stretch.first, stretch.last
        told = (b"content-range", f"bytes {first}-{last}/{row.bytes}".encode())
        return StreamedResponse(206, (*headers, told), last - first + 1, lambda: self.files.open(row, first, last))


def read_purpose(text: str) -> Purpose:
    for purpose in UPLOADED:
        if text == purpose:
            return purpose
    raise Refused(f"purpose must be one of {', '.join(UPLOADED)}", "purpose", "invalid_purpose")


def _wanted(headers: Mapping[str, str], etag: str, size: int) -> ByteRange | None:
    """A range is of the content that its asker knows: with an If-Range that names another, the whole is the answer."""
    if headers.get("if-range", etag) != etag:
        return None
    return byte_range(headers.get("range"), size)


def _disposition(filename: str) -> bytes:
    """The name in ASCII for old readers, with what could end or escape a quoted text replaced; and in full."""
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
