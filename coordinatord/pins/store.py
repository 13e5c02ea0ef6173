"""The pin store: objects by key, each answered with the content id it is pinned under.

An answer without a content id, or with one that cannot be the content's, fails the upload: nothing is posted that
could not be fetched again.
"""

import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote
from xml.sax.saxutils import escape

import anyio
import attrs
import httpx

from common.cid import parse_cid
from common.refusal import Refused
from coordinatord.pins.requests import StoreRequests, cid_header, rejected
from coordinatord.pins.signing import Signer
from coordinatord.secret import Secret
from coordinatord.trouble import Retryable

PART_BYTES: Final = 8 << 20  # the store's least is 5 MiB; this much of an upload is in memory at a time
_READ_BYTES: Final = 1 << 16
_UPLOAD_ID: Final = re.compile(rb"<UploadId>([^<]+)</UploadId>")
_RAW_LEAF_BYTES: Final = 1 << 18  # no store imports so little as more than one block


@attrs.frozen(slots=True)
class Pinned:
    cid: str
    size: int
    sha256: bytes


class PinStore:
    def __init__(self, requests: StoreRequests) -> None:
        self._requests = requests

    async def put(self, key: str, content: bytes) -> Pinned:
        """Store content that is at hand; large content goes in parts."""
        if len(content) > PART_BYTES:
            return await self.put_pieces(key, _pieces(content))
        response = await self._requests.send("put", "PUT", key, content=content)
        return await self._pinned(response, key, len(content), hashlib.sha256(content).digest())

    async def put_pieces(self, key: str, pieces: AsyncIterable[bytes]) -> Pinned:
        """Store content as it comes, in constant memory. Nothing is left in the store if it does not come whole."""
        created = await self._requests.send("upload", "POST", key, query="uploads=")
        found = _UPLOAD_ID.search(created.content)
        if found is None:
            raise rejected("it began an upload without an id")
        upload = f"uploadId={quote(found[1].decode('ascii', 'replace'), safe='')}"
        try:
            return await self._parts(key, upload, pieces)
        except BaseException:
            # Parts of an upload that is never completed are kept, and charged for, until somebody aborts it.
            with anyio.move_on_after(5, shield=True):
                await self._requests.send("abort", "DELETE", key, query=upload)
            raise

    async def _parts(self, key: str, upload: str, pieces: AsyncIterable[bytes]) -> Pinned:
        digest, size = hashlib.sha256(), 0
        etags: list[str] = []
        waiting = bytearray()

        async def flush() -> None:
            part = bytes(waiting)
            waiting.clear()
            response = await self._requests.send(
                "part", "PUT", key, query=f"partNumber={len(etags) + 1}&{upload}", content=part
            )
            etags.append(response.headers.get("etag", ""))

        async for piece in pieces:
            digest.update(piece)
            size += len(piece)
            waiting += piece
            if len(waiting) >= PART_BYTES:
                await flush()
        if waiting or not etags:
            await flush()
        listed = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{escape(etag)}</ETag></Part>" for n, etag in enumerate(etags, 1)
        )
        completion = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"
        response = await self._requests.send("complete", "POST", key, query=upload, content=completion.encode())
        if b"<Error>" in response.content:  # S3 says 200 before it knows
            raise rejected("it could not put the parts together")
        return await self._pinned(response, key, size, digest.digest())

    async def cid_of(self, key: str) -> str | None:
        """Under which content id the store holds `key`; Retryable `object_missing` when it does not."""
        return cid_header((await self._requests.send("head", "HEAD", key)).headers)

    async def holds(self, key: str) -> bool:
        try:
            await self.cid_of(key)
        except Retryable as trouble:
            if trouble.code == "object_missing":
                return False
            raise
        return True

    async def get(self, key: str) -> bytes:
        return (await self._requests.send("get", "GET", key)).content

    @asynccontextmanager
    async def read(self, key: str, *, first: int = 0, last: int | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """The object piece by piece, or its bytes from `first` to `last` inclusive."""
        async with self._requests.stream("read", key, first=first, last=last) as response:
            yield response.aiter_raw(_READ_BYTES)

    async def delete(self, key: str) -> None:
        """Remove the object; removing what is not there succeeds."""
        await self._requests.send("delete", "DELETE", key)

    async def _pinned(self, response: httpx.Response, key: str, size: int, sha256: bytes) -> Pinned:
        text = cid_header(response.headers) or await self.cid_of(key)
        try:
            cid = parse_cid(text, "cid")
        except Refused as wrong:
            raise rejected(f"its content id {text!r} is none: {wrong}") from wrong
        # The id of a single raw block is the content's own digest; of larger content it depends on how the store
        # cuts it, which only the store knows.
        if (cid.codec == "raw" or size <= _RAW_LEAF_BYTES) and cid.digest != sha256:
            raise rejected("its content id is another content's")
        return Pinned(str(cid), size, sha256)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    with memoryview(content) as view:
        for start in range(0, len(content), PART_BYTES):
            yield bytes(view[start : start + PART_BYTES])


def bucket_url(endpoint: str, bucket: str) -> str:
    """By path: a bucket as a host name would need a name server that knows it."""
    return f"{endpoint}/{quote(bucket, safe='')}"


@asynccontextmanager
async def open_pin_store(
    endpoint: str, bucket: str, access_key: Secret, secret_key: Secret, region: str, *, patience: float = 30.0
) -> AsyncIterator[PinStore]:
    """`patience`: seconds between any two bytes; connecting gets a third of it."""
    limits = httpx.Limits(max_connections=32, max_keepalive_connections=16)
    timeout = httpx.Timeout(patience, connect=patience / 3)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client:
        yield PinStore(StoreRequests(client, bucket_url(endpoint, bucket), Signer(access_key, secret_key, region)))
