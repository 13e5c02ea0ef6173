"""Content on its way in and out: hashed while it is written, sent a piece at a time."""

import hashlib
import os
import re
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, Final

import attrs
from aiohttp import web
from aiohttp.client_exceptions import ClientError
from aiohttp.http_exceptions import HttpProcessingError
from anyio import to_thread

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
SMALL: Final = 1 << 16  # content up to this size is held, hashed and sent as one: that takes less time than a thread


@attrs.frozen
class Digests:
    """All that is known of content that came whole."""

    size: int
    cid: str
    md5: bytes
    sha1: bytes
    sha256: bytes
    crc32: bytes


@attrs.frozen
class Received:
    """Content that is on disk under a name of its own."""

    path: Path
    digests: Digests


@attrs.frozen
class Held:
    """Content that is small, and nowhere but here."""

    body: bytes
    digests: Digests


class _Digesting:
    def __init__(self) -> None:
        self._size = 0
        self._cid = UnixFsHasher()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sha1 = hashlib.sha1(usedforsecurity=False)
        self._sha256 = hashlib.sha256()
        self._crc32 = 0

    def update(self, piece: bytes) -> None:
        self._size += len(piece)
        for digest in (self._cid, self._md5, self._sha1, self._sha256):
            digest.update(piece)
        self._crc32 = zlib.crc32(piece, self._crc32)

    def finish(self) -> Digests:
        return Digests(
            self._size,
            str(self._cid.finish()),
            self._md5.digest(),
            self._sha1.digest(),
            self._sha256.digest(),
            self._crc32.to_bytes(4, "big"),
        )


def digests_of(body: bytes) -> Digests:
    digesting = _Digesting()
    digesting.update(body)
    return digesting.finish()


class ContentIntake:
    """Writes one file and digests it in the same pass. Blocking: for worker threads, one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")
        self._digesting = _Digesting()

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digesting.update(piece)

    def copy_from(self, path: Path) -> None:
        with path.open("rb") as source:
            while piece := source.read(_PIECE):
                self.write(piece)

    def finish(self) -> Received:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return Received(self._path, self._digesting.finish())

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


_BROKEN_OFF: Final = (ConnectionError, ClientError, HttpProcessingError)  # aiohttp's ways to say so


async def receive_small(request: web.BaseRequest) -> Held:
    """The body of `request`, whose head says that it is small."""
    try:
        body = await request.content.read()
    except _BROKEN_OFF:
        raise _incomplete() from None
    return Held(body, digests_of(body))


async def receive(request: web.BaseRequest, path: Path) -> Received:
    """The body of `request` into a new file at `path`; nothing is left there if it does not come whole."""
    intake = await to_thread.run_sync(ContentIntake, path)
    waiting = bytearray()
    try:
        async for piece in request.content.iter_any():
            waiting += piece
            if len(waiting) >= _PIECE:
                await to_thread.run_sync(intake.write, bytes(waiting))
                waiting.clear()
        await to_thread.run_sync(intake.write, bytes(waiting))
        return await to_thread.run_sync(intake.finish)
    except BaseException as failure:
        intake.discard()
        if isinstance(failure, _BROKEN_OFF):
            raise _incomplete() from None
        raise


def _incomplete() -> S3Error:
    return S3Error("IncompleteBody", "The connection ended before the body did.")


async def outgoing(
    request: web.BaseRequest, file: IO[bytes], stretch: ByteRange, headers: Mapping[str, str]
) -> web.StreamResponse:
    """A stretch of an open file, which is closed when it is sent."""
    with file:
        file.seek(stretch.start)
        left = stretch.stop - stretch.start
        if left <= SMALL:
            return web.Response(body=file.read(left), status=stretch.status, headers={**headers, **stretch.headers})
        answer = web.StreamResponse(status=stretch.status, headers={**headers, **stretch.headers})
        await answer.prepare(request)
        while left > 0:
            piece = await to_thread.run_sync(partial(file.read, min(left, _PIECE)))
            left -= len(piece)
            await answer.write(piece)
        await answer.write_eof()
        return answer
