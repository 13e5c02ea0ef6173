"""Reads of results that are checked against their content id.

A gateway's answer is not trusted. A provider that ran a job for this wallet knows the key that its results are sealed
to, and could forge another result with a gateway's help.

The id of a single raw block is the hash of the content. The id of a larger file is the hash of its tree of blocks, and
depends on how the store cut the file. The usual layouts are computed from the content. A file with another layout is
read block by block, from a gateway that serves blocks. Ids of other kinds cannot be checked. If such content does not
open, it may be an error page with status 200, so the next gateway is tried.
"""

import hashlib
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, Generic, TypeVar

import attrs
import httpx

from common.cid import Cid, ImportProfile, UnixFsHasher, parse_cid
from common.refusal import Refused
from svc.errors import ResultUnreadable
from svc.wire.answers import MAX_CONTENT_BYTES
from svc.wire.block_reads import MAX_BLOCK_BYTES, content_of
from svc.wire.gateways import Gateways, NoGateway, NotServed, is_content_id

S = TypeVar("S")

_OTHER: Final = "the content does not match its id"
_CUT: Final = "forged or of an unknown layout: SVC_PIN_GATEWAY or --gateway must name a gateway that serves blocks"
# Layouts with which stores import files: the protocol's layout, then those of widespread implementations.
_PROFILES: Final = (
    ImportProfile(),
    ImportProfile(1 << 20, 174),
    ImportProfile(1 << 18, 174),
    ImportProfile(1 << 18, 1024),
)


@attrs.frozen
class CheckedReads:
    """Reads from gateways. Without gateways, reads are disabled."""

    gateways: Gateways

    async def read(
        self, cid: str, begin: Callable[[], S], take: Callable[[S, bytes], object], end: Callable[[S], object]
    ) -> S:
        """Feed the content's pieces to `take`, then call `end`, and return the sink. `begin` creates a new sink for
        each attempt.

        Content that breaks off is read again from its start. If `take` or `end` raises ResultUnreadable and the content
        matches the id, the error is raised at once. If the id cannot be checked, the error is raised after all other
        gateways have failed."""
        if not self.gateways.urls:
            raise ResultUnreadable("no gateway is set, so that results cannot be read", code="reads_disabled")
        if not is_content_id(cid):
            raise ResultUnreadable(f"{cid!r} is not a content id", code="bad_cid")
        unproved: list[ResultUnreadable] = []

        async def attempt(url: str) -> S:
            try:
                return await self._attempt(url, cid, begin, take, end)
            except _Unproved as unread:
                unproved.append(unread.error)
                raise NotServed(unread.error.message, may_come=False) from None

        try:
            return await self.gateways.first(attempt)
        except NoGateway as failed:
            if failed.may_come:
                raise ResultUnreadable(f"{cid}: {failed}", code="gateway_unavailable", retryable=True) from None
            if unproved:
                raise unproved[0] from None
            raise ResultUnreadable(f"{cid}: {failed}", code="gateway_status") from None

    async def _attempt(
        self,
        url: str,
        cid: str,
        begin: Callable[[], S],
        take: Callable[[S, bytes], object],
        end: Callable[[S], object],
    ) -> S:
        identity = _identity_of(cid)
        content = _Checked(identity, begin(), take, end)
        await self.gateways.get(f"{url}/ipfs/{cid}", content.feed)
        if content.is_the_right_one():
            content.finish()
            return content.sink
        if identity is None or identity.cid.codec == "raw":
            raise NotServed(_OTHER, may_come=False)
        sink = begin()
        await self._feed_blocks(url, identity.cid, lambda piece: take(sink, piece))
        end(sink)
        return sink

    async def _feed_blocks(self, url: str, cid: Cid, take: Callable[[bytes], object]) -> None:
        try:
            async with aclosing(content_of(self.gateways.http, url, cid)) as pieces:
                async for piece in pieces:
                    take(piece)
        except Refused as refused:
            raise NotServed(f"{_OTHER}, {_CUT} ({refused.message})", may_come=False) from None
        except (httpx.RequestError, TimeoutError) as failed:
            transient = isinstance(failed, httpx.TransportError | TimeoutError)
            raise NotServed(f"{_OTHER}, {_CUT} ({type(failed).__name__}: {failed})", may_come=transient) from None


@attrs.frozen(slots=True, eq=False)
class _Unproved(Exception):
    """Content does not open, and its id cannot be checked. So either the gateway or the provider is at fault."""

    error: ResultUnreadable


@attrs.define
class _Checked(Generic[S]):
    """Content of one attempt. `identity` checks it, or is None if the id cannot be checked."""

    identity: "_Identity | None"
    sink: S
    take: Callable[[S, bytes], object]
    end: Callable[[S], object]
    _length: int = 0
    _unreadable: ResultUnreadable | None = None

    async def feed(self, piece: bytes) -> None:
        """Take a piece. Raise _Unproved if the content does not open and cannot be checked."""
        self._length += len(piece)
        if self.identity is not None:
            self.identity.update(piece)
        if self._unreadable is None:
            try:
                self.take(self.sink, piece)
            except ResultUnreadable as unreadable:
                self._unreadable = unreadable
        if self._unreadable is not None and (self.identity is None or self._length > self.identity.max_bytes):
            raise _Unproved(self._unreadable)

    def is_the_right_one(self) -> bool:
        return self.identity is None or self.identity.holds()

    def finish(self) -> None:
        """Call `end`. If the content does not open, raise ResultUnreadable, or _Unproved for an unchecked id."""
        try:
            if self._unreadable is not None:
                raise self._unreadable
            self.end(self.sink)
        except ResultUnreadable as unreadable:
            if self.identity is None:
                raise _Unproved(unreadable) from None
            raise


@attrs.define
class _Identity:
    """Compares the bytes read with an id. Content that does not open is still read, up to `max_bytes`, to find out if
    the gateway or the provider is at fault."""

    cid: Cid
    _block: "hashlib._Hash" = attrs.field(factory=hashlib.sha256)
    _files: list[UnixFsHasher] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        if self.cid.codec != "raw":
            self._files = [UnixFsHasher(profile) for profile in _PROFILES]

    @property
    def max_bytes(self) -> int:
        return MAX_CONTENT_BYTES if self._files else MAX_BLOCK_BYTES

    def update(self, piece: bytes) -> None:
        for file in self._files:
            file.update(piece)
        if not self._files:
            self._block.update(piece)

    def holds(self) -> bool:
        if self._files:
            return any(file.finish() == self.cid for file in self._files)
        return self._block.digest() == self.cid.digest


def _identity_of(cid: str) -> _Identity | None:
    try:
        return _Identity(parse_cid(cid, "cid"))
    except Refused:  # an id of another kind
        return None
