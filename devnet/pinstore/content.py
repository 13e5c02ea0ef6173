"""Content on its way in and out: hashed while it is written, sent a piece at a time."""

import hashlib
import os
import re
import zlib
from functools import partial
from pathlib import Path
from typing import IO, Final

import attrs
from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from common.cid import UnixFsHasher
from devnet.pinstore.s3_errors import S3Error

# `Range: bytes=` of a GET, reduced to one stretch of the content.

_ONE_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


@attrs.frozen
class ByteRange:
    """Bytes `start` up to but without `stop`, of `size`."""

    start: int
    stop: int
    size: int
    partial: bool  # asked for with a Range header that was understood

    @property
    def headers(self) -> dict[str, str]:
        headers = {"content-length": str(self.stop - self.start), "accept-ranges": "bytes"}
        if self.partial:
            headers["content-range"] = f"bytes {self.start}-{self.stop - 1}/{self.size}"
        return headers

    @property
    def status(self) -> int:
        return 206 if self.partial else 200


def stretch_of(header: str | None, size: int) -> ByteRange | None:
    """The stretch to answer with, or None if the range lies outside of the content (416).

    A header that is not one byte range asks for nothing, and the whole content is the answer.
    """
    match = _ONE_RANGE.fullmatch(header or "")
    if match is None or match[0] == "bytes=-":
        return ByteRange(0, size, size, partial=False)
    first, last = match[1], match[2]
    if not first:  # the last so many bytes
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return ByteRange(0, size, size, partial=False)
    return ByteRange(start, stop, size, partial=True) if start < stop else None


# Large enough that the change of threads costs nothing beside the hashing of one piece.
_PIECE: Final = 1 << 20
_SMALL: Final = 1 << 16  # is read in less time than the change of threads takes


@attrs.frozen
class Received:
    """Content that is on disk under a name of its own, and all that is known of it."""

    path: Path
    size: int
    cid: str
    md5: bytes
    sha1: bytes
    sha256: bytes
    crc32: bytes


class ContentIntake:
    """Writes one file and digests it in the same pass. Blocking: for worker threads, one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")
        self._size = 0
        self._cid = UnixFsHasher()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sha1 = hashlib.sha1(usedforsecurity=False)
        self._sha256 = hashlib.sha256()
        self._crc32 = 0

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._size += len(piece)
        for digest in (self._cid, self._md5, self._sha1, self._sha256):
            digest.update(piece)
        self._crc32 = zlib.crc32(piece, self._crc32)

    def copy_from(self, path: Path) -> None:
        with path.open("rb") as source:
            while piece := source.read(_PIECE):
                self.write(piece)

    def finish(self) -> Received:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return Received(
            self._path,
            self._size,
            str(self._cid.finish()),
            self._md5.digest(),
            self._sha1.digest(),
            self._sha256.digest(),
            self._crc32.to_bytes(4, "big"),
        )

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


async def receive(request: Request, path: Path) -> Received:
    """The body of `request` into a new file at `path`; nothing is left there if it does not come whole."""
    intake: ContentIntake | None = None
    waiting = bytearray()
    try:
        async for piece in request.stream():
            waiting += piece
            if len(waiting) >= _PIECE:
                if intake is None:
                    intake = await to_thread.run_sync(ContentIntake, path)
                await to_thread.run_sync(intake.write, bytes(waiting))
                waiting.clear()
        if intake is None:  # most content is small: the way to a thread costs more than what is done there
            return await to_thread.run_sync(_received_whole, path, bytes(waiting))
        await to_thread.run_sync(intake.write, bytes(waiting))
        return await to_thread.run_sync(intake.finish)
    except BaseException as failure:
        if intake is not None:
            intake.discard()
        if isinstance(failure, ClientDisconnect):
            raise S3Error("IncompleteBody", "The connection ended before the body did.") from None
        raise


def _received_whole(path: Path, body: bytes) -> Received:
    intake = ContentIntake(path)
    try:
        intake.write(body)
        return intake.finish()
    except BaseException:
        intake.discard()
        raise


class Outgoing(Response):
    """A stretch of an open file, which is closed when it is sent."""

    def __init__(self, file: IO[bytes], stretch: ByteRange, headers: dict[str, str]) -> None:
        super().__init__(status_code=stretch.status, headers={**headers, **stretch.headers})
        self._file = file
        self._stretch = stretch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file as file:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            left = self._stretch.stop - self._stretch.start
            file.seek(self._stretch.start)
            while left > _SMALL:
                piece = await to_thread.run_sync(partial(file.read, min(left, _PIECE)))
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": file.read(left)})
