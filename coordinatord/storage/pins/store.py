"""Pin store: objects by key, each with a content id that the store returns.

An upload fails if the content id is missing or cannot belong to the content, so that every posted job's content can be
fetched.
"""

import re
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol, TypeAlias
from urllib.parse import quote
from xml.sax.saxutils import escape

import anyio
import attrs
import structlog

from common.cid import Cid, dag_pb_leaf_cid, read_store_cid
from common.daemon.secrets import Secret
from common.refusal import Refused
from coordinatord.base.concurrency import read_ahead
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import open_http
from coordinatord.base.thread_pipe import ThreadPipe, thread_pipe
from coordinatord.storage.pins.requests import (
    Payload,
    RequestSigner,
    StoreRequests,
    StoreResponse,
    build_payload,
    cid_from_headers,
    rejected_error,
)

log = structlog.get_logger(__name__)

# Minimum size of a part, except for the last part.
PART_BYTES: Final = 5 << 20
_UPLOAD_ID_PATTERN: Final = re.compile(rb"<UploadId>([^<]+)</UploadId>")

BeforePart: TypeAlias = Callable[[str], Awaitable[None]]
"""Called with the store's id of the upload before each part is sent."""
_MAX_CONNECTIONS: Final = 32
# Separate connections for clients that read slowly.
_MAX_STREAM_CONNECTIONS: Final = 128
# Content up to this size is sent in one request.
MAX_SINGLE_REQUEST_BYTES: Final = 8 << 20
_PIECE_BYTES: Final = 1 << 20
# All stores import content of up to this size as one block, so its content id can be checked.
_MAX_ONE_BLOCK_BYTES: Final = 1 << 18


async def put_in_parts(
    requests: StoreRequests, key: str, pieces: AsyncIterable[bytes], before_part: BeforePart
) -> StoreResponse:
    """Store `pieces`, which must fill more than one part, under `key`. Return the store's answer to the complete
    upload.

    At most two parts are in memory: one is sent while the next arrives. If the content does not arrive whole, the
    store's upload is aborted, because the store would keep its parts and charge for them.
    """
    created = await requests.send("upload", "POST", key, query="uploads=")
    found = _UPLOAD_ID_PATTERN.search(created.content)
    if found is None:
        raise rejected_error("the answer to a new multipart upload has no upload id")
    upload_id = found[1].decode("ascii", "replace")
    async with _abort_unless_done(requests, key, upload_id):
        etags: list[str] = []
        async with thread_pipe() as thread, read_ahead(_split_parts(pieces, thread)) as parts:
            async for part in parts:
                await before_part(upload_id)
                query = f"partNumber={len(etags) + 1}&{_upload_query(upload_id)}"
                response = await requests.send("part", "PUT", key, query=query, payload=part)
                etags.append(response.headers.get("etag", ""))
        listed = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{escape(etag)}</ETag></Part>" for n, etag in enumerate(etags, 1)
        )
        completion = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        payload = await build_payload(completion)
        response = await requests.send("complete", "POST", key, query=_upload_query(upload_id), payload=payload)
        # S3 sends status 200 before the parts are joined.
        if b"<Error>" in response.content:
            raise rejected_error("the parts of the upload could not be joined")
        return response


async def abort_upload(requests: StoreRequests, key: str, upload_id: str) -> None:
    """Abort an upload. An upload that has already ended is not an error."""
    try:
        await requests.send("abort", "DELETE", key, query=_upload_query(upload_id))
    except Retryable as error:
        if error.code != "object_missing":
            raise


@asynccontextmanager
async def _abort_unless_done(requests: StoreRequests, key: str, upload_id: str) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        with anyio.move_on_after(5, shield=True):
            try:
                await abort_upload(requests, key, upload_id)
            except Retryable as error:
                # The caller gets the original error.
                log.warning("upload not aborted", key=key, reason=error.message)
        raise


async def _split_parts(pieces: AsyncIterable[bytes], thread: ThreadPipe) -> AsyncIterator[Payload]:
    part = Payload()
    async for piece in pieces:
        await part.add(piece, thread)
        if part.size >= PART_BYTES:
            await thread.wait_until_idle()
            yield part
            part = Payload()
    if part.size:
        await thread.wait_until_idle()
        yield part


def _upload_query(upload_id: str) -> str:
    return f"uploadId={quote(upload_id, safe='')}"


async def ignore_part(_: str) -> None:
    pass


@attrs.frozen(slots=True)
class PinnedObject:
    cid: str
    size: int


class PinStore(Protocol):
    """Objects by the coordinator's keys. Several keys may have the same content."""

    async def put(self, key: str, content: bytes) -> PinnedObject:
        """Store content in memory. Large content is sent in parts."""
        ...

    async def put_pieces(
        self, key: str, pieces: AsyncIterable[bytes], *, before_part: BeforePart = ignore_part
    ) -> PinnedObject:
        """Store streamed content in constant memory. If the content does not arrive whole, the store keeps nothing."""
        ...

    async def abort(self, key: str, upload_id: str) -> None:
        """Abort the store's upload with the id passed to `before_part`, if it has not ended."""
        ...

    async def holds(self, key: str) -> bool: ...

    async def get(self, key: str) -> bytes:
        """Return the object. Raise Retryable `object_missing` if the store does not hold it."""
        ...

    def read(
        self, key: str, *, first: int = 0, last: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream the object, or its bytes from `first` to `last` inclusive."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the object. Removing a missing object succeeds."""
        ...


@attrs.define(slots=True)
class StreamedContent:
    """Streamed content, read ahead up to the size of one request. `is_whole` is True if the content ended within that
    size."""

    _rest: AsyncIterator[bytes]
    buffered: deque[bytes] = attrs.field(factory=deque)
    size: int = 0
    is_whole: bool = False

    @classmethod
    async def begin(cls, pieces: AsyncIterable[bytes]) -> "StreamedContent":
        content = cls(aiter(pieces))
        async for piece in content._rest:
            content.buffered.append(piece)
            content.size += len(piece)
            if content.size > MAX_SINGLE_REQUEST_BYTES:
                return content
        content.is_whole = True
        return content

    async def pieces(self) -> AsyncIterator[bytes]:
        while self.buffered:
            yield self.buffered.popleft()
        async for piece in self._rest:
            self.size += len(piece)
            yield piece


class PinningStore:
    """S3 store that pins its objects and returns their content ids, such as Filebase."""

    def __init__(self, requests: StoreRequests) -> None:
        self._requests = requests

    async def put(self, key: str, content: bytes) -> PinnedObject:
        """Store content in memory. Large content is sent in parts."""
        if len(content) > MAX_SINGLE_REQUEST_BYTES:
            return await self.put_pieces(key, split_into_pieces(content))
        return await self._put_whole(key, await build_payload(content))

    async def put_pieces(
        self, key: str, pieces: AsyncIterable[bytes], *, before_part: BeforePart = ignore_part
    ) -> PinnedObject:
        """Store streamed content in constant memory. If the content does not arrive whole, the store keeps nothing.

        Pieces of a few hundred KiB are fastest: each is hashed in a thread and sent without a copy.
        """
        content = await StreamedContent.begin(pieces)
        if content.is_whole:
            return await self._put_whole(key, await build_payload(*content.buffered))

        cid = await self._read_cid(await put_in_parts(self._requests, key, content.pieces(), before_part), key)
        # Content of this size is never a single block.
        if cid.codec == "raw":
            raise rejected_error("the returned content id does not match the content")
        return PinnedObject(str(cid), content.size)

    async def abort(self, key: str, upload_id: str) -> None:
        """Abort the store's upload with the id passed to `before_part`, if it has not ended."""
        await abort_upload(self._requests, key, upload_id)

    async def _put_whole(self, key: str, payload: Payload) -> PinnedObject:
        response = await self._requests.send("put", "PUT", key, payload=payload)
        # The id of a single raw block is the digest of the content. The id of larger content depends on the store's
        # layout.
        raw_cid = str(Cid("raw", payload.sha256))
        # Usual for small content, such as a line of a batch: the response already has the correct content id.
        if cid_from_headers(response.headers) == raw_cid:
            return PinnedObject(raw_cid, payload.size)
        cid = await self._read_cid(response, key)
        require_cid_of_content(cid, payload)
        return PinnedObject(str(cid), payload.size)

    async def read_stored_cid(self, key: str) -> str | None:
        """Return the content id of `key`. Raise Retryable `object_missing` if the store does not hold it."""
        return cid_from_headers((await self._requests.send("head", "HEAD", key)).headers)

    async def holds(self, key: str) -> bool:
        try:
            await self.read_stored_cid(key)
        except Retryable as error:
            if error.code == "object_missing":
                return False
            raise
        return True

    async def get(self, key: str) -> bytes:
        return (await self._requests.send("get", "GET", key)).content

    @asynccontextmanager
    async def read(self, key: str, *, first: int = 0, last: int | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream the object, or its bytes from `first` to `last` inclusive."""
        async with self._requests.stream("read", key, first=first, last=last) as response:
            yield response.pieces

    async def delete(self, key: str) -> None:
        """Remove the object. Removing a missing object succeeds."""
        try:
            await self._requests.send("delete", "DELETE", key)
        except Retryable as error:
            # Most stores report success for a missing object.
            if error.code != "object_missing":
                raise

    async def _read_cid(self, response: StoreResponse, key: str) -> Cid:
        text = cid_from_headers(response.headers) or await self.read_stored_cid(key)
        try:
            return read_store_cid(text, "cid")
        except Refused as wrong:
            raise rejected_error(f"the content id {text!r} is malformed: {wrong}") from wrong


def require_cid_of_content(cid: Cid, payload: Payload) -> None:
    """Raise Retryable if this cannot be the content's id.

    One block is a raw leaf or, in CIDv0, a dag-pb node. The id of several blocks depends on the store's layout and
    cannot be checked.
    """
    if cid.digest == payload.sha256 and cid.codec == "raw":
        return
    if cid.codec == "raw" or (
        payload.size <= _MAX_ONE_BLOCK_BYTES and cid != dag_pb_leaf_cid(b"".join(payload.pieces))
    ):
        raise rejected_error("the returned content id does not match the content")


async def split_into_pieces(content: bytes) -> AsyncIterator[bytes]:
    with memoryview(content) as view:
        for start in range(0, len(content), _PIECE_BYTES):
            yield bytes(view[start : start + _PIECE_BYTES])


def bucket_url(endpoint: str, bucket: str) -> str:
    """Return the bucket's URL, with the bucket in the path. A bucket in the host name would need a DNS entry."""
    return f"{endpoint}/{quote(bucket, safe='')}"


@asynccontextmanager
async def open_pin_store(
    endpoint: str, bucket: str, access_key: Secret, secret_key: Secret, region: str, *, timeout_s: float = 30.0
) -> AsyncIterator[PinningStore]:
    """Open a pinning store. `timeout_s` is the longest wait between two reads. The timeout of connecting is a third of
    that."""
    async with open_bucket(endpoint, bucket, access_key, secret_key, region, timeout_s=timeout_s) as requests:
        yield PinningStore(requests)


@asynccontextmanager
async def open_bucket(
    endpoint: str, bucket: str, access_key: Secret, secret_key: Secret, region: str, *, timeout_s: float = 30.0
) -> AsyncIterator[StoreRequests]:
    """Open connections to one bucket. `timeout_s` is the longest wait between two reads."""
    signer = RequestSigner(access_key, secret_key, region)
    async with (
        open_http(connections=_MAX_CONNECTIONS, timeout_s=timeout_s, connect_timeout_s=timeout_s / 3) as http,
        open_http(connections=_MAX_STREAM_CONNECTIONS, timeout_s=timeout_s, connect_timeout_s=timeout_s / 3) as streams,
    ):
        yield StoreRequests(http, bucket_url(endpoint, bucket), signer, streams=streams)
