"""Bearer session of a wallet. It is created at the first use, and renewed before it expires or once it is rejected."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import anyio
import attrs

from common.api.chain import Nonce, SessionShape
from common.scalars import hex_of
from svc.errors import ApiError, AuthenticationFailed, ConnectionFailed
from svc.wire.transport import Transport, read_record

T = TypeVar("T")

RENEWAL_MARGIN_S: Final = 60  # a session is renewed this long before it expires
_UNAUTHORIZED_STATUS: Final = 401


@attrs.define(eq=False)
class Sessions:
    """Creates, renews and caches a wallet's session. `sign_in` returns the signed session request for a nonce."""

    transport: Transport
    address: bytes
    sign_in: Callable[[str], Awaitable[Mapping[str, Any]]]
    _session: SessionShape | None = None
    _lock: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def current(self, deadline: float | None = None) -> SessionShape:
        """Return a session that is valid for more than a minute. Concurrent callers share one new session.

        Failed attempts are retried until the `deadline`. Raises ApiError or ConnectionFailed."""
        try:
            with anyio.fail_after(None if deadline is None else max(0.0, deadline - anyio.current_time())):
                async with self._lock:
                    if (
                        self._session is None
                        or self._session.expires_at - RENEWAL_MARGIN_S <= self.transport.clock.now()
                    ):
                        self._session = None
                        self._session = await self._create(deadline)
                    return self._session
        except TimeoutError:
            raise ConnectionFailed("the coordinator did not create a session before the deadline") from None

    async def authorised(self, send: Callable[[dict[str, str]], Awaitable[T]]) -> T:
        """Call `send` with the session's header. If the session is rejected, call `send` again with a new session."""
        session = await self.current()
        try:
            return await send(authorization(session))
        except AuthenticationFailed as refused:
            if refused.status != _UNAUTHORIZED_STATUS:
                raise
        self.forget(session)
        return await send(authorization(await self.current()))

    def forget(self, session: SessionShape) -> None:
        """Forget a rejected session, unless another session has replaced it."""
        if self._session is session:
            self._session = None

    async def _create(self, deadline: float | None) -> SessionShape:
        """Create a session. Each attempt uses a new nonce, because the previous nonce may be used up or evicted."""
        query, attempt = {"address": hex_of(self.address)}, 0
        while True:
            nonce = read_record(await self.transport.send("GET", "/auth/nonce", params=query, deadline=deadline), Nonce)
            body = await self.sign_in(nonce.nonce)
            try:
                return await self.transport.post("/auth/session", SessionShape, body, retry=False)
            except (ApiError, ConnectionFailed) as failed:
                pause = self.transport.retry_pause(attempt, 0.0, deadline)
                if pause is None or not (self.transport.may_retry(failed) or failed.param == "nonce"):
                    raise
            await self.transport.sleep(pause)
            attempt += 1


def authorization(session: SessionShape) -> dict[str, str]:
    """Return the Authorization header for a session."""
    return {"authorization": f"Bearer {session.token}"}
