"""Read results from gateways, and check them against their content id.

Gateways are not trusted. A provider that ran a job for this wallet knows the public key to which the wallet's results
are sealed. With a gateway's help, such a provider could forge the result of another job.

The id of a single raw block is the hash of the content. The id of a larger file is the hash of its tree of blocks, and
depends on how the store divided the file. For the usual divisions, the client computes the id from the content. Files
with another division are read block by block, from a gateway that serves blocks. Other ids cannot be checked.

Content is unreadable if it cannot be decrypted or is not a valid result. If the id of unreadable content cannot be
checked, the content may be an error page with status 200, so the next gateway is tried.
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
from svc.wire.block_reads import MAX_BLOCK_BYTES, read_file_by_blocks
from svc.wire.gateways import Gateways, NoGatewayServed, NotServed, is_content_id

S = TypeVar("S")

_WRONG_CONTENT: Final = "the content does not match its id"
_UNKNOWN_LAYOUT: Final = (
    "so the content is forged or its division into blocks is unknown. To check other divisions, set SVC_PIN_GATEWAY or"
    " --gateway to a gateway that serves blocks"
)
# Usual divisions of files into blocks: the protocol's first, then those of widespread stores.
_IMPORT_PROFILES: Final = (
    ImportProfile(),
    ImportProfile(1 << 20, 174),
    ImportProfile(1 << 18, 174),
    ImportProfile(1 << 18, 1024),
)


@attrs.frozen
class CheckedReader:
    """Reads content from gateways and checks it against its id. Without gateways, reads are disabled."""

    gateways: Gateways

    async def read(
        self, cid: str, open_sink: Callable[[], S], write: Callable[[S, bytes], object], close: Callable[[S], object]
    ) -> S:
        """Pass the content's pieces to `write`, call `close`, and return the sink.

        Each attempt reads the content from its start, into a new sink from `open_sink`. If `write` or `close` raises
        ResultUnreadable and the content matches the id, the error is raised at once. If the id cannot be checked, the
        error is raised after all other gateways have failed.
        """
        if not self.gateways.urls:
            raise ResultUnreadable(
                "no gateway is set, so results cannot be read: set SVC_PIN_GATEWAY or --gateway", code="reads_disabled"
            )
        if not is_content_id(cid):
            raise ResultUnreadable(f"{cid!r} is not a content id", code="bad_cid")
        uncheckable: list[ResultUnreadable] = []

        async def attempt(url: str) -> S:
            try:
                return await self._read_from_gateway(url, cid, open_sink, write, close)
            except _UncheckableContent as unreadable:
                uncheckable.append(unreadable.error)
                raise NotServed(unreadable.error.message, retryable=False) from None

        try:
            return await self.gateways.try_each(attempt)
        except NoGatewayServed as failed:
            if failed.retryable:
                raise ResultUnreadable(f"{cid}: {failed}", code="gateway_unavailable", retryable=True) from None
            if uncheckable:
                raise uncheckable[0] from None
            raise ResultUnreadable(f"{cid}: {failed}", code="gateway_status") from None

    async def _read_from_gateway(
        self,
        url: str,
        cid: str,
        open_sink: Callable[[], S],
        write: Callable[[S, bytes], object],
        close: Callable[[S], object],
    ) -> S:
        id_check = _new_id_check(cid)
        content = _Download(id_check, open_sink(), write, close)
        await self.gateways.get(f"{url}/ipfs/{cid}", content.feed)
        if content.matches_id():
            content.finish()
            return content.sink
        if id_check is None or id_check.cid.codec == "raw":
            raise NotServed(_WRONG_CONTENT, retryable=False)
        sink = open_sink()
        await self._feed_blocks(url, id_check.cid, lambda piece: write(sink, piece))
        close(sink)
        return sink

    async def _feed_blocks(self, url: str, cid: Cid, write: Callable[[bytes], object]) -> None:
        try:
            async with aclosing(read_file_by_blocks(self.gateways.http, url, cid)) as pieces:
                async for piece in pieces:
                    write(piece)
        except Refused as refused:
            raise NotServed(f"{_WRONG_CONTENT}, {_UNKNOWN_LAYOUT} ({refused.message})", retryable=False) from None
        except (httpx.RequestError, TimeoutError) as failed:
            transient = isinstance(failed, httpx.TransportError | TimeoutError)
            raise NotServed(
                f"{_WRONG_CONTENT}, {_UNKNOWN_LAYOUT} ({type(failed).__name__}: {failed})", retryable=transient
            ) from None


@attrs.frozen(slots=True, eq=False)
class _UncheckableContent(Exception):
    """The content is unreadable, and its id cannot be checked, so the gateway or the provider may be at fault."""

    error: ResultUnreadable


@attrs.define
class _Download(Generic[S]):
    """Download of one attempt. `id_check` is None if the content id cannot be checked."""

    id_check: "_IdCheck | None"
    sink: S
    write: Callable[[S, bytes], object]
    close: Callable[[S], object]
    _length: int = 0
    _unreadable: ResultUnreadable | None = None

    async def feed(self, piece: bytes) -> None:
        """Hash a piece and write it to the sink.

        Raises _UncheckableContent if the content is unreadable and cannot be checked.
        """
        self._length += len(piece)
        if self.id_check is not None:
            self.id_check.update(piece)
        if self._unreadable is None:
            try:
                self.write(self.sink, piece)
            except ResultUnreadable as unreadable:
                self._unreadable = unreadable
        if self._unreadable is not None and (self.id_check is None or self._length > self.id_check.max_bytes):
            raise _UncheckableContent(self._unreadable)

    def matches_id(self) -> bool:
        return self.id_check is None or self.id_check.matches()

    def finish(self) -> None:
        """Call `close`.

        If the content is unreadable, raises ResultUnreadable, or _UncheckableContent if the content has no id check.
        """
        try:
            if self._unreadable is not None:
                raise self._unreadable
            self.close(self.sink)
        except ResultUnreadable as unreadable:
            if self.id_check is None:
                raise _UncheckableContent(unreadable) from None
            raise


@attrs.define
class _IdCheck:
    """Compares content with its id.

    Unreadable content is also read, up to `max_bytes`. If this content matches the id, the provider is at fault, not
    the gateway.
    """

    cid: Cid
    _block: "hashlib._Hash" = attrs.field(factory=hashlib.sha256)
    _files: list[UnixFsHasher] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        if self.cid.codec != "raw":
            self._files = [UnixFsHasher(profile) for profile in _IMPORT_PROFILES]

    @property
    def max_bytes(self) -> int:
        return MAX_CONTENT_BYTES if self._files else MAX_BLOCK_BYTES

    def update(self, piece: bytes) -> None:
        for file in self._files:
            file.update(piece)
        if not self._files:
            self._block.update(piece)

    def matches(self) -> bool:
        if self._files:
            return any(file.finish() == self.cid for file in self._files)
        return self._block.digest() == self.cid.digest


def _new_id_check(cid: str) -> _IdCheck | None:
    try:
        return _IdCheck(parse_cid(cid, "cid"))
    except Refused:  # an id of a kind that cannot be checked
        return None
