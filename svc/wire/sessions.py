"""The bearer session of one wallet: minted when it is first needed, renewed before it ends, and once when refused."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
import attrs

from common.api.chain import Nonce
from common.domains import Domains
from common.messages.sessions import SvcSession
from common.scalars import hex_of
from svc.core.typed_data import request
from svc.errors import ApiError, AuthenticationFailed, ConnectionFailed
from svc.records import Session
from svc.signers import Signer
from svc.wire.transport import Transport

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
