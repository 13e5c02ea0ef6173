"""Bearer session of one wallet: created when first needed, renewed before it expires and when it is refused."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import anyio
import attrs

from common.api.chain import Nonce, SessionShape
from common.scalars import hex_of
from svc.errors import ApiError, AuthenticationFailed, ConnectionFailed
from svc.wire.transport import Transport, read

T = TypeVar("T")

RENEW_SECONDS: Final = 60  # before the session expires
_REFUSED: Final = 401


@attrs.define(eq=False)
class Sessions:
    """Sessions of a wallet. `sign_in` signs the request for a session from a nonce of the coordinator."""

    transport: Transport
    address: bytes
    sign_in: Callable[[str], Awaitable[Mapping[str, Any]]]
    _session: SessionShape | None = None
    _turn: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def current(self, deadline: float | None = None) -> SessionShape:
        """Return a session with more than a minute to go. Callers that need a new one share it.

        Failed attempts are retried until the `deadline`. Raises ApiError or ConnectionFailed."""
        try:
            with anyio.fail_after(None if deadline is None else max(0.0, deadline - anyio.current_time())):
                async with self._turn:
                    if self._session is None or self._session.expires_at - RENEW_SECONDS <= self.transport.clock.now():
                        self._session = None
                        self._session = await self._create(deadline)
                    return self._session
        except TimeoutError:
            raise ConnectionFailed("no session within the time that was left") from None

    async def authorised(self, ask: Callable[[dict[str, str]], Awaitable[T]]) -> T:
        """Call `ask` with the session's header. If the session is refused, call it again with a new session."""
        session = await self.current()
        try:
            return await ask(authorization(session))
        except AuthenticationFailed as refused:
            if refused.status != _REFUSED:
                raise
        self.drop(session)
        return await ask(authorization(await self.current()))

    def drop(self, session: SessionShape) -> None:
        """Forget a refused session, unless another session has replaced it."""
        if self._session is session:
            self._session = None

    async def _create(self, deadline: float | None) -> SessionShape:
        """Create a session. Each attempt uses a new nonce, because the last one may be used up or evicted."""
        query, attempt = {"address": hex_of(self.address)}, 0
        while True:
            nonce = read(await self.transport.send("GET", "/auth/nonce", params=query, deadline=deadline), Nonce)
            body = await self.sign_in(nonce.nonce)
            try:
                return await self.transport.post("/auth/session", SessionShape, body, safe=False)
            except (ApiError, ConnectionFailed) as failed:
                pause = self.transport.pause(attempt, 0.0, deadline)
                if pause is None or not (self.transport.may_repeat(failed) or failed.param == "nonce"):
                    raise
            await self.transport.sleep(pause)
            attempt += 1


def authorization(session: SessionShape) -> dict[str, str]:
    """Return the header that names a session."""
    return {"authorization": f"Bearer {session.token}"}
