"""Reads of stored results from storage gateways, without credentials.

A round asks each gateway in turn. While any of them gave a network error, a 404 or a 5xx (a result may be seconds old),
there is another round, up to eight, 1.5 s apart; when all gave other errors, there is none.

Nothing is taken on a gateway's word. Who ran a job for this wallet before knows the key that its results are sealed to,
and could make another one with a gateway's help; so content is held against its id, where the id can tell: one of a
single raw block is its hash, and one of several is what the file's blocks come to, cut as stores cut them. Where it
was cut otherwise its blocks are read one by one, from a gateway that serves them. Of an id of another kind nothing can
be told here: what does not open may be an error page that a gateway serves as 200, and the next gateway is asked.
"""

import hashlib
import re
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Final, Generic, TypeVar

import anyio
import attrs
import httpx

from common.cid import Cid, ImportProfile, UnixFsHasher, parse_cid
from common.refusal import Refused
from svc.core.retries import GATEWAY_ATTEMPTS, GATEWAY_PAUSE
from svc.errors import ResultUnreadable
from svc.wire.answers import LONGEST_CONTENT, followed, pieces_of
from svc.wire.block_reads import LARGEST_BLOCK, content_of
from svc.wire.transport import Sleep

_OK: Final = 200


S = TypeVar("S")

_CID: Final = re.compile(r"[A-Za-z0-9]{1,128}", re.ASCII)
_NOT_YET: Final = 404
_SERVER_FAULT: Final = 500
_PIECE_SECONDS: Final = 180.0  # for the next 64 KiB: an answer that trickles would never end
_OTHER: Final = "other bytes than those of this id"
_CUT: Final = "cut as no known store cuts, or forged: SVC_PIN_GATEWAY or --gateway must name one that serves blocks"
# How stores cut files that they import: the protocol's own first, then those of widespread implementations.
_PROFILES: Final = (
    ImportProfile(),
    ImportProfile(1 << 20, 174),
    ImportProfile(1 << 18, 174),
    ImportProfile(1 << 18, 1024),
)


@attrs.define
class Gateways:
    """`urls` is empty when reads are disabled."""

    http: httpx.AsyncClient
    urls: tuple[str, ...]
    sleep: Sleep = anyio.sleep

    async def read(
        self, cid: str, begin: Callable[[], S], take: Callable[[S, bytes], object], end: Callable[[S], object]
    ) -> S:
        """Feed the object's pieces to `take`, and have `end` say that they were all; `begin` makes what they are fed
        to, anew for every attempt.

        An answer that breaks off is read again from its start. What `take` and `end` raise of ResultUnreadable is
        raised at once where the gateway gave what it was asked for, and where that cannot be told when no other
        gateway gives anything better.
        """
        if not self.urls:
            raise ResultUnreadable("no gateway is set, so that results cannot be read", code="reads_disabled")
        if not _CID.fullmatch(cid):  # it becomes a path
            raise ResultUnreadable(f"{cid!r} is no content id", code="bad_cid")
        failures: list[str] = []
        unreadable: ResultUnreadable | None = None
        left = self.urls
        for attempt in range(GATEWAY_ATTEMPTS):
            if attempt:
                await self.sleep(GATEWAY_PAUSE)
            failures, may_come = [], False
            for url in left:
                identity, sink = _identity_of(cid), begin()
                failure = await self._read_once(f"{url}/ipfs/{cid}", _Checked(identity, sink, take, end))
                if failure is not None and failure.what == _OTHER and identity and identity.cid.codec != "raw":
                    sink = begin()
                    failure = await self._by_blocks(url, identity.cid, partial(take, sink))
                    if failure is None:
                        end(sink)
                if failure is None:
                    return sink
                failures.append(f"{url}: {failure.what}")
                may_come = may_come or failure.may_come
                if failure.unreadable is not None:
                    unreadable = unreadable or failure.unreadable
                    left = tuple(other for other in left if other != url)
            if not may_come:
                if unreadable is not None:
                    raise unreadable
                raise ResultUnreadable(f"{cid}: {'; '.join(failures)}", code="gateway_status")
        raise ResultUnreadable(f"{cid}: {'; '.join(failures)}", code="gateway_unavailable", retryable=True)

    async def _read_once(self, url: str, content: "_Checked[S]") -> "_Failure | None":
        try:
            with anyio.move_on_after(_PIECE_SECONDS) as waiting:
                async with followed(self.http, url) as response:
                    status = response.status_code
                    if status != _OK:
                        return _Failure(f"status {status}", status == _NOT_YET or status >= _SERVER_FAULT)
                    async with pieces_of(response, LONGEST_CONTENT) as pieces:
                        async for piece in pieces:
                            waiting.deadline = anyio.current_time() + _PIECE_SECONDS
                            if (unknown := content.feed(piece)) is not None:
                                return unknown
                return content.whole()
            return _Failure(f"no 64 KiB within {_PIECE_SECONDS:g} s", may_come=True)
        except httpx.TransportError as failed:
            return _Failure(f"{type(failed).__name__}: {failed}", may_come=True)
        except httpx.RequestError as failed:  # redirects without end or to nowhere, encodings
            return _Failure(f"{type(failed).__name__}: {failed}", may_come=False)

    async def _by_blocks(self, url: str, cid: Cid, take: Callable[[bytes], object]) -> "_Failure | None":
        """Content that is not what the known ways of cutting come to, by its own tree."""
        try:
            async with aclosing(content_of(self.http, url, cid)) as pieces:
                async for piece in pieces:
                    take(piece)
        except Refused as refused:
            return _Failure(f"{_OTHER}, {_CUT} ({refused.message})", may_come=False)
        except (httpx.RequestError, TimeoutError) as failed:
            away = isinstance(failed, httpx.TransportError | TimeoutError)
            return _Failure(f"{_OTHER}, {_CUT} ({type(failed).__name__}: {failed})", may_come=away)
        return None


@attrs.define
class _Checked(Generic[S]):
    """Content on its way to where it is taken. `identity` is what it is held against, where its id can tell."""

    identity: "_Identity | None"
    sink: S
    take: Callable[[S, bytes], object]
    end: Callable[[S], object]
    _length: int = 0
    _unreadable: ResultUnreadable | None = None

    def feed(self, piece: bytes) -> "_Failure | None":
        """A failure at once where what does not open has no hash that could say whose fault it is."""
        self._length += len(piece)
        if self.identity is not None:
            self.identity.update(piece)
        if self._unreadable is None:
            try:
                self.take(self.sink, piece)
            except ResultUnreadable as unreadable:
                self._unreadable = unreadable
        if self._unreadable is not None and (self.identity is None or self._length > self.identity.longest):
            return _unknown(self._unreadable)
        return None

    def whole(self) -> "_Failure | None":
        """None when it is what was asked for. Raises ResultUnreadable when it is that, and of no use all the same."""
        if self.identity is not None and not self.identity.holds():
            return _Failure(_OTHER, may_come=False)
        if self._unreadable is None:
            try:
                self.end(self.sink)
            except ResultUnreadable as unreadable:
                self._unreadable = unreadable
        if self._unreadable is None:
            return None
        if self.identity is None:
            return _unknown(self._unreadable)
        raise self._unreadable


@attrs.define
class _Identity:
    """Whether the bytes that passed are those of an id. What does not open is waited out up to `longest` bytes, to
    learn whose fault it is."""

    cid: Cid
    _block: "hashlib._Hash" = attrs.field(factory=hashlib.sha256)
    _files: list[UnixFsHasher] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        if self.cid.codec != "raw":
            self._files = [UnixFsHasher(profile) for profile in _PROFILES]

    @property
    def longest(self) -> int:
        return LONGEST_CONTENT if self._files else LARGEST_BLOCK

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


@attrs.frozen(slots=True)
class _Failure:
    what: str
    may_come: bool
    unreadable: ResultUnreadable | None = None


def _unknown(unreadable: ResultUnreadable) -> _Failure:
    """Content that cannot be used, and whose fault that is cannot be told."""
    return _Failure(unreadable.message, may_come=False, unreadable=unreadable)
