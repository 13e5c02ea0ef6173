"""The provider's session: signed in once, renewed before it ends or when the coordinator no longer knows it."""

import math
from typing import Final

import attrs
import httpx
import structlog
import trio

from svcd.base.clock import Clock
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.requests import CoordinatorReply, Requests, Unanswered

log = structlog.get_logger(__name__)

_RENEWED_BEFORE_END: Final = 60
_NONCES: Final = 3  # tried for one session


@attrs.frozen(slots=True)
class ProviderSession:
    token: str = attrs.field(repr=False)
    expires_at: int
    provider_id: int

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


@attrs.frozen(slots=True)
class SignInRefused:
    """No session: `status` is that of the answer that refused it; None where none did, and another try may do."""

    status: int | None
    detail: str

    @property
    def final(self) -> bool:
        """Whether asking again would be refused again."""
        return self.status is not None and self.status < 500 and self.status != httpx.codes.TOO_MANY_REQUESTS

    @property
    def advice(self) -> str:
        """For an operator."""
        if self.detail == "not_registered":
            return "not a registered provider: the wallet registers with the market first"
        return f"{self.detail} ({self.status})" if self.status is not None else self.detail


@attrs.define(slots=True, eq=False)
class ProviderSessions:
    requests: Requests
    signer: OpSigner
    clock: Clock
    _current: ProviderSession | None = None
    _turn: trio.Lock = attrs.field(factory=trio.Lock)

    async def current(self, give_up_at: float | None = None) -> ProviderSession | SignInRefused:
        """Callers that need a new one share it. None waits past its own `give_up_at` (loop time) for another's."""
        with trio.move_on_at(give_up_at if give_up_at is not None else math.inf):
            async with self._turn:
                session = self._current
                if session is not None and session.expires_at - _RENEWED_BEFORE_END > self.clock.wall():
                    return session
                fresh = await self._sign_in(give_up_at)
                self._current = fresh if isinstance(fresh, ProviderSession) else None
                return fresh
        return SignInRefused(None, "no session within the time that was left")

    def is_dead(self, session: ProviderSession) -> None:
        """The coordinator answered 401 to it."""
        if self._current is session:
            self._current = None

    async def _sign_in(self, give_up_at: float | None) -> ProviderSession | SignInRefused:
        """With a further nonce when one is gone. A coordinator whose database broke off in the midst of the commit may
        have used it up and said that it can be tried again: that must end no daemon, and no job."""
        for _ in range(_NONCES):
            session = await self._handshake(give_up_at)
            if session is not None:
                return session
        return SignInRefused(None, f"{_NONCES} nonces were gone when they were used")

    async def _handshake(self, give_up_at: float | None) -> ProviderSession | SignInRefused | None:
        """None when the nonce was gone."""
        nonce = await self.requests.ask(
            "GET", "/auth/nonce", params={"address": self.signer.address}, give_up_at=give_up_at
        )
        if isinstance(nonce, Unanswered):
            return SignInRefused(None, nonce.detail)
        text = nonce.fields.get("nonce")
        if nonce.status != 200 or not isinstance(text, str):
            return _refused(nonce)
        # A nonce is used once: the same body sent again would be refused.
        body = self.signer.session(text, "provider")
        answer = await self.requests.ask("POST", "/auth/session", json=body, give_up_at=give_up_at, resend=False)
        if isinstance(answer, Unanswered):
            return SignInRefused(None, answer.detail)
        if answer.status == 400 and answer.param == "nonce":
            return None
        token, ends = answer.fields.get("token"), answer.fields.get("expires_at")
        provider_id = answer.fields.get("provider_id")
        if (
            answer.status != 200
            or not isinstance(token, str)
            or not isinstance(ends, int)
            or not isinstance(provider_id, int)
        ):
            return _refused(answer)
        log.info("signed in", provider_id=provider_id, expires_at=ends)
        return ProviderSession(token, ends, provider_id)


def _refused(answer: CoordinatorReply) -> SignInRefused:
    return SignInRefused(answer.status, answer.code or "an answer that is no session")
