"""The bearer session of one wallet: minted when it is first needed, renewed before it ends, and once when refused."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import anyio
import attrs
import httpx
import msgspec

from common.api import limits
from common.api.chain import Nonce
from common.domains import Domains
from common.messages.sessions import SvcSession
from common.scalars import hex_of
from svc.core.typed_data import request
from svc.errors import ApiError, AuthenticationFailed, ConnectionFailed
from svc.records import Session
from svc.signers import Signer
from svc.wire.transport import Transport, given, read, unexpected

T = TypeVar("T")

RENEW_SECONDS: Final = 60  # before its end
_REFUSED: Final = 401


@attrs.define
class Sessions:
    transport: Transport
    signer: Signer
    domains: Callable[[], Awaitable[Domains]]
    _session: Session | None = None
    _minting: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def current(self) -> Session:
        """A session with more than a minute to go."""
        async with self._minting:
            if self._session is None or self._session.expires_at - RENEW_SECONDS <= self.transport.clock.now():
                self._session = await self._mint()
            return self._session

    async def authorised(self, ask: Callable[[dict[str, str]], Awaitable[T]]) -> T:
        """`ask` with the session's header; once more with a new session when this one is refused."""
        session = await self.current()
        try:
            return await ask(_header(session))
        except AuthenticationFailed as refused:
            if refused.status != _REFUSED:
                raise
        self.drop(session)
        return await ask(_header(await self.current()))

    def drop(self, session: Session) -> None:
        """Forget a session that was refused, unless another has taken its place meanwhile."""
        if self._session is session:
            self._session = None

    async def _mint(self) -> Session:
        """A nonce is used up by the attempt, so that what is made again is the whole handshake."""
        retries, attempt = self.transport.retries, 0
        while True:
            try:
                return await self._handshake()
            except (ApiError, ConnectionFailed) as failed:
                if not failed.retryable or attempt == retries.most:
                    raise
            await self.transport.sleep(retries.pause(attempt))
            attempt += 1

    async def _handshake(self) -> Session:
        address = hex_of(self.signer.address)
        nonce = await self.transport.get("/auth/nonce", Nonce, {"address": address})
        message = SvcSession(self.signer.address, nonce.nonce)
        signature = await self.signer.sign(request("session", (await self.domains()).session, message))
        body = {"address": address, "nonce": nonce.nonce, "signature": hex_of(signature)}
        return await self.transport.post("/auth/session", Session, body, safe=False)


def _header(session: Session) -> dict[str, str]:
    return {"authorization": f"Bearer {session.token}"}


# Lists that come in pages: cut by the limit, or before it when a page's body would grow too large.

R = TypeVar("R")

_OFFSET: Final = re.compile(r"[0-9]{1,9}", re.ASCII)

LARGEST_PAGE: Final = limits.LARGEST_PAGE


async def paged(
    transport: Transport,
    path: str,
    key: str,
    kind: type[R],
    *,
    limit: int | None,
    offset: int = 0,
    params: Mapping[str, object] | None = None,
) -> list[R]:
    """Up to `limit` entries from `offset` on; all of them when `limit` is None."""
    entries: list[R] = []
    while limit is None or len(entries) < limit:
        size = LARGEST_PAGE if limit is None else min(limit - len(entries), LARGEST_PAGE)
        query = {**(params or {}), "limit": size, "offset": offset}
        response = await transport.send("GET", path, params=given(query))
        page = _rows(response, key, kind)
        entries += page
        cut = response.headers.get("x-svc-page-truncated", "").lower() == "true"
        if not cut and len(page) < size:
            break
        offset = _next(response, offset, offset + len(page))
    return entries


def _rows(response: httpx.Response, key: str, kind: type[R]) -> list[R]:
    rows = read(response, dict[str, msgspec.Raw]).get(key, msgspec.Raw(b"null"))
    try:
        return msgspec.json.decode(rows, type=list[kind], strict=False)  # type: ignore[valid-type] # a variable
    except msgspec.ValidationError as malformed:
        raise unexpected(response, f"the answer's {key} are malformed: {malformed}") from malformed


def _next(response: httpx.Response, at: int, counted: int) -> int:
    """Where the next page begins: always further on, or there would be no end of them."""
    named = response.headers.get("x-svc-next-offset") or str(counted)
    if not _OFFSET.fullmatch(named) or int(named) <= at:
        raise unexpected(response, f"the page after offset {at} begins at {named!r}")
    return int(named)
