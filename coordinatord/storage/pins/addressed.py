"""Pin store on plain S3 (MinIO, Ceph, AWS). Objects are stored at `ipfs/<content id>`, so the bucket itself is the
gateway.

The store does not know content ids. This module computes them, like an IPFS import with 1 MiB chunks and 1,024 links,
and the database maps keys to content ids (`pinned_sql`). The id of streamed content is known only at its end, so the
content is uploaded to `incoming/<key>` and then copied within the store.
"""

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
from anyio import to_thread

from common.cid import UnixFsHasher, cid_of
from coordinatord.base.errors import Retryable
from coordinatord.base.thread_pipe import thread_pipe
from coordinatord.storage.pins.pinned_sql import KeyMap
from coordinatord.storage.pins.requests import StoreRequests, build_payload, missing_error, rejected_error
from coordinatord.storage.pins.store import (
    MAX_SINGLE_REQUEST_BYTES,
    BeforePart,
    PinnedObject,
    StreamedContent,
    abort_upload,
    ignore_part,
    put_in_parts,
    split_into_pieces,
)

GATEWAY_PATH: Final = "ipfs/"
_INCOMING_PREFIX: Final = "incoming/"
# Larger content is hashed in a thread.
_INLINE_HASH_BYTES: Final = 1 << 16


@attrs.frozen(slots=True)
class PlainS3Store:
    requests: StoreRequests
    keys: KeyMap

    async def put(self, key: str, content: bytes) -> PinnedObject:
        cid = str(cid_of(content) if len(content) <= _INLINE_HASH_BYTES else await to_thread.run_sync(cid_of, content))
        replaced = await self.keys.pin(key, cid)
        if len(content) > MAX_SINGLE_REQUEST_BYTES:
            await put_in_parts(self.requests, GATEWAY_PATH + cid, split_into_pieces(content), ignore_part)
        else:
            await self.requests.send("put", "PUT", GATEWAY_PATH + cid, payload=await build_payload(content))
        if replaced is not None:
            await self.keys.unpin(replaced, self._remove)
        return PinnedObject(cid, len(content))

    async def put_pieces(
        self, key: str, pieces: AsyncIterable[bytes], *, before_part: BeforePart = ignore_part
    ) -> PinnedObject:
        content = await StreamedContent.begin(pieces)
        if content.is_whole:
            return await self.put(key, b"".join(content.buffered))
        hasher = UnixFsHasher()
        async with thread_pipe() as thread:

            async def all_pieces() -> AsyncIterator[bytes]:
                async for piece in content.pieces():
                    await thread.queue_work(hasher.update, piece)
                    yield piece

            await put_in_parts(self.requests, _INCOMING_PREFIX + key, all_pieces(), before_part)
            await thread.wait_until_idle()
        cid = str(hasher.finish())
        replaced = await self.keys.pin(key, cid)
        source = {"x-amz-copy-source": self.requests.path(_INCOMING_PREFIX + key)}
        copied = await self.requests.send("copy", "PUT", GATEWAY_PATH + cid, extra_headers=source)
        # S3 sends status 200 before the copy is done.
        if b"<Error>" in copied.content:
            raise rejected_error("the uploaded content could not be copied")
        await self._delete(_INCOMING_PREFIX + key)
        if replaced is not None:
            await self.keys.unpin(replaced, self._remove)
        return PinnedObject(cid, content.size)

    async def abort(self, key: str, upload_id: str) -> None:
        await abort_upload(self.requests, _INCOMING_PREFIX + key, upload_id)

    async def holds(self, key: str) -> bool:
        cid = await self.keys.find_cid(key)
        if cid is None:
            return False
        try:
            await self.requests.send("head", "HEAD", GATEWAY_PATH + cid)
        except Retryable as error:
            if error.code == "object_missing":
                return False
            raise
        return True

    async def get(self, key: str) -> bytes:
        return (await self.requests.send("get", "GET", await self._path_of_key(key))).content

    @asynccontextmanager
    async def read(self, key: str, *, first: int = 0, last: int | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self.requests.stream("read", await self._path_of_key(key), first=first, last=last) as response:
            yield response.pieces

    async def delete(self, key: str) -> None:
        # An upload that stopped before its copy may have left this object.
        await self._delete(_INCOMING_PREFIX + key)
        await self.keys.unpin(key, self._remove)

    async def _path_of_key(self, key: str) -> str:
        cid = await self.keys.find_cid(key)
        if cid is None:
            raise missing_error(key)
        return GATEWAY_PATH + cid

    async def _remove(self, cid: str) -> None:
        await self._delete(GATEWAY_PATH + cid)

    async def _delete(self, key: str) -> None:
        try:
            await self.requests.send("delete", "DELETE", key)
        except Retryable as error:
            if error.code != "object_missing":
                raise
