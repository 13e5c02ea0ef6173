"""Content of any size on its way into the store, in parts.

Two parts are in memory at most: one is sent while the next comes in. The store's own upload is aborted when the content
does not come whole: its parts would be kept, and charged for, until somebody does.
"""

import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias
from urllib.parse import quote
from xml.sax.saxutils import escape

import anyio
import structlog

from coordinatord.ahead import running_ahead
from coordinatord.beside import Beside, beside
from coordinatord.pins.exchange import Answered
from coordinatord.pins.payload import Payload, payload_of
from coordinatord.pins.requests import StoreRequests, rejected
from coordinatord.trouble import Retryable

log = structlog.get_logger(__name__)

PART_BYTES: Final = 5 << 20  # the least that a store takes of all parts but the last
_UPLOAD_ID: Final = re.compile(rb"<UploadId>([^<]+)</UploadId>")

BeforePart: TypeAlias = Callable[[str], Awaitable[None]]
"""Told the store's id of the upload before each part is sent."""


async def put_in_parts(
    requests: StoreRequests, key: str, pieces: AsyncIterable[bytes], before_part: BeforePart
) -> Answered:
    """Store all of `pieces`, more than one part, under `key`; the store's answer to the whole."""
    created = await requests.send("upload", "POST", key, query="uploads=")
    found = _UPLOAD_ID.search(created.content)
    if found is None:
        raise rejected("it began an upload without an id")
    upload = found[1].decode("ascii", "replace")
    async with _aborted_unless_done(requests, key, upload):
        etags: list[str] = []
        async with beside() as thread, running_ahead(_parts(pieces, thread)) as parts:
            async for part in parts:
                await before_part(upload)
                query = f"partNumber={len(etags) + 1}&{_named(upload)}"
                response = await requests.send("part", "PUT", key, query=query, payload=part)
                etags.append(response.headers.get("etag", ""))
        listed = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{escape(etag)}</ETag></Part>" for n, etag in enumerate(etags, 1)
        )
        completion = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        payload = await payload_of(completion)
        response = await requests.send("complete", "POST", key, query=_named(upload), payload=payload)
        if b"<Error>" in response.content:  # S3 says 200 before it knows
            raise rejected("it could not put the parts together")
        return response


async def abort(requests: StoreRequests, key: str, upload: str) -> None:
    """End an upload that will not be completed. One that ended already is no trouble."""
    try:
        await requests.send("abort", "DELETE", key, query=_named(upload))
    except Retryable as trouble:
        if trouble.code != "object_missing":
            raise


@asynccontextmanager
async def _aborted_unless_done(requests: StoreRequests, key: str, upload: str) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        with anyio.move_on_after(5, shield=True):
            try:
                await abort(requests, key, upload)
            except Retryable as trouble:
                # What went wrong first is what the caller is told.
                log.warning("upload not aborted", key=key, reason=trouble.message)
        raise


async def _parts(pieces: AsyncIterable[bytes], thread: Beside) -> AsyncIterator[Payload]:
    part = Payload()
    async for piece in pieces:
        await part.add(piece, thread)
        if part.size >= PART_BYTES:
            await thread.idle()
            yield part
            part = Payload()
    if part.size:
        await thread.idle()
        yield part


def _named(upload: str) -> str:
    return f"uploadId={quote(upload, safe='')}"
