"""The provider's session: signed in once, renewed before it ends or when the coordinator no longer knows it."""

import math
from typing import Final

import attrs
import structlog
import trio

from svcd.clock import Clock
from svcd.coordinator.requests import NoAnswer, Reply, Requests
from svcd.coordinator.signer import Signer

log = structlog.get_logger(__name__)

_RENEWED_BEFORE_END: Final = 60


@attrs.frozen(slots=True)
class Session:
    token: str = attrs.field(repr=False)
    expires_at: int
    provider_id: int

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


@attrs.frozen(slots=True)
class SignInRefused:
    """No session: `status` is that of the answer, or None when there was none."""

    status: int | None
    detail: str

    @property
    def advice(self) -> str:
        """For an operator."""
        if self.detail == "not_registered":
            return "not a registered provider: the wallet registers with the market first"
        return f"{self.detail} ({self.status})" if self.status is not None else self.detail


@attrs.define(slots=True, eq=False)
class Sessions:
    requests: Requests
    signer: Signer
    clock: Clock
    _current: Session | None = None
    _turn: trio.Lock = attrs.field(factory=trio.Lock)

    async def current(self, give_up_at: float | None = None) -> Session | SignInRefused:
        """Callers that need a new one share it. None waits past its own `give_up_at` (loop time) for another's."""
        with trio.move_on_at(give_up_at if give_up_at is not None else math.inf):
            async with self._turn:
                session = self._current
                if session is not None and session.expires_at - _RENEWED_BEFORE_END > self.clock.wall():
                    return session
                fresh = await self._sign_in(give_up_at)
                self._current = fresh if isinstance(fresh, Session) else None
                return fresh
        return SignInRefused(None, "no session within the time that was left")

    def is_dead(self, session: Session) -> None:
        """The coordinator answered 401 to it."""
        if self._current is session:
            self._current = None

    async def _sign_in(self, give_up_at: float | None) -> Session | SignInRefused:
        nonce = await self.requests.ask(
            "GET", "/auth/nonce", params={"address": self.signer.address}, give_up_at=give_up_at
        )
        if isinstance(nonce, NoAnswer):
            return SignInRefused(None, nonce.detail)
        text = nonce.fields.get("nonce")
        if nonce.status != 200 or not isinstance(text, str):
            return _refused(nonce)
        # A nonce is used once: the same body sent again would be refused.
        body = self.signer.session(text, "provider")
        answer = await self.requests.ask("POST", "/auth/session", json=body, give_up_at=give_up_at, resend=False)
        if isinstance(answer, NoAnswer):
            return SignInRefused(None, answer.detail)
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
        return Session(token, ends, provider_id)


def _refused(answer: Reply) -> SignInRefused:
    return SignInRefused(answer.status, answer.code or "an answer that is no session")
