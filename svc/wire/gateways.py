"""Reads of stored results from storage gateways, without credentials.

A round asks each gateway in turn. While any of them gave a network error, a 404 or a 5xx (a result may be seconds old),
there is another round, up to eight, 1.5 s apart; when all gave other errors, there is none.

Nothing is taken on a gateway's word. Who ran a job for this wallet before knows the key that its results are sealed to,
and could make another one with a gateway's help; so content is held against its id, where the id can tell: one of a
single raw block is its hash. A file of several blocks may be cut in any way, and its id proves nothing here.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import anyio
import attrs
import httpx

from common.cid import parse_cid
from common.refusal import Refused
from svc.core.retries import GATEWAY_ATTEMPTS, GATEWAY_PAUSE
from svc.errors import ResultUnreadable
from svc.wire.transport import Sleep, pieces_of

S = TypeVar("S")

_CID: Final = re.compile(r"[A-Za-z0-9]{1,128}", re.ASCII)
_OK: Final = 200
_NOT_YET: Final = 404
_SERVER_FAULT: Final = 500
_LARGEST_BLOCK: Final = 4 << 20  # more than stores put into one: what goes on for longer is not waited out


@attrs.define
class Gateways:
    """`urls` is empty when reads are disabled."""

    http: httpx.AsyncClient
    urls: tuple[str, ...]
    sleep: Sleep = anyio.sleep

    async def read(self, cid: str, begin: Callable[[], S], take: Callable[[S, bytes], object]) -> S:
        """Feed the object's pieces to `take`; `begin` makes what they are fed to, anew for every attempt.

        An answer that breaks off is read again from its start. What `take` raises of ResultUnreadable is raised, unless
        the gateway gave other bytes than it was asked for: that is a failure as others are.
        """
        if not self.urls:
            raise ResultUnreadable("no gateway is set, so that results cannot be read", code="reads_disabled")
        if not _CID.fullmatch(cid):  # it becomes a path
            raise ResultUnreadable(f"{cid!r} is no content id", code="bad_cid")
        failures: list[str] = []
        for attempt in range(GATEWAY_ATTEMPTS):
            if attempt:
                await self.sleep(GATEWAY_PAUSE)
            failures, may_come = [], False
            for url in self.urls:
                sink = begin()
                failure = await self._read_once(f"{url}/ipfs/{cid}", _Checked(_digest_of(cid), sink, take))
                if failure is None:
                    return sink
                failures.append(f"{url}: {failure.what}")
                may_come = may_come or failure.may_come
            if not may_come:
                raise ResultUnreadable(f"{cid}: {'; '.join(failures)}", code="gateway_status")
        raise ResultUnreadable(f"{cid}: {'; '.join(failures)}", code="gateway_unavailable", retryable=True)

    async def _read_once(self, url: str, content: "_Checked[S]") -> "_Failure | None":
        try:
            async with self.http.stream("GET", url, follow_redirects=True) as response:
                status = response.status_code
                if status != _OK:
                    return _Failure(f"status {status}", status == _NOT_YET or status >= _SERVER_FAULT)
                async with pieces_of(response) as pieces:
                    async for piece in pieces:
                        content.feed(piece)
        except httpx.TransportError as failed:
            return _Failure(f"{type(failed).__name__}: {failed}", may_come=True)
        except (httpx.RequestError, httpx.InvalidURL) as failed:  # redirects without end or to nowhere, odd encodings
            return _Failure(f"{type(failed).__name__}: {failed}", may_come=False)
        return None if content.whole() else _Failure("other bytes than those of this id", may_come=False)


@attrs.define
class _Checked(Generic[S]):
    """Content on its way to where it is taken. `digest` is its sha2-256, where that is known."""

    digest: bytes | None
    sink: S
    take: Callable[[S, bytes], object]
    _hash: "hashlib._Hash" = attrs.field(factory=hashlib.sha256)
    _length: int = 0
    _unreadable: ResultUnreadable | None = None

    def feed(self, piece: bytes) -> None:
        """Raises ResultUnreadable at once where there is no hash that could say whose fault it is."""
        self._length += len(piece)
        if self.digest is not None:
            self._hash.update(piece)
        if self._unreadable is None:
            try:
                self.take(self.sink, piece)
            except ResultUnreadable as unreadable:
                self._unreadable = unreadable
        if self._unreadable is not None and (self.digest is None or self._length > _LARGEST_BLOCK):
            raise self._unreadable

    def whole(self) -> bool:
        """Whether it is what was asked for. Raises what was wrong with it, when it is."""
        if self.digest is not None and self._hash.digest() != self.digest:
            return False
        if self._unreadable is not None:
            raise self._unreadable
        return True


def _digest_of(cid: str) -> bytes | None:
    try:
        named = parse_cid(cid, "cid")
    except Refused:  # an id of another kind
        return None
    return named.digest if named.codec == "raw" else None


@attrs.frozen(slots=True)
class _Failure:
    what: str
    may_come: bool
