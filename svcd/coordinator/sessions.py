"""Sign in to the coordinator as a provider."""

import attrs
import httpx

from common.api.chain import SessionShape
from common.scalars import hex_of
from svc.wire.sessions import Sessions
from svc.wire.transport import ApiError, ConnectionFailed, Transport
from svcd.coordinator.op_signer import OpSigner


@attrs.frozen(slots=True)
class ProviderSession:
    """Session of a provider, with the provider's id."""

    session: SessionShape = attrs.field(repr=False)
    provider_id: int


@attrs.frozen(slots=True)
class SignInRefused:
    """Failed sign-in. `status` is the status of the error response, or None without a response."""

    status: int | None
    detail: str

    @property
    def is_permanent(self) -> bool:
        """Return True if a retry would fail again.

        A success response that cannot be read is not permanent, because it may come from a proxy.
        """
        return self.status is not None and 400 <= self.status < 500 and self.status != httpx.codes.TOO_MANY_REQUESTS

    @property
    def operator_message(self) -> str:
        """Message for the operator."""
        if self.detail == "not_registered":
            return "the wallet is not a registered provider: register it with the market first"
        return f"{self.detail} ({self.status})" if self.status is not None else self.detail


def provider_sessions(transport: Transport, signer: OpSigner) -> Sessions:
    """Return the session manager of a provider's wallet."""

    async def sign_nonce(nonce: str) -> dict[str, object]:
        return signer.sign_session(nonce, "provider")

    return Sessions(transport, signer.wallet.address, sign_nonce)


async def sign_in(sessions: Sessions, deadline: float | None = None) -> ProviderSession | SignInRefused:
    """Return the current session. Sign in first if no session is open."""
    try:
        session = await sessions.current(deadline)
    except ApiError as refused:
        if refused.param == "nonce":  # `Sessions` has already retried with new nonces
            return SignInRefused(None, "the nonce was used or evicted before the sign-in")
        return SignInRefused(refused.status, refused.code or refused.type)
    except ConnectionFailed as failed:
        return SignInRefused(None, failed.message)
    if session.provider_id is None:
        sessions.forget(session)
        return SignInRefused(
            httpx.codes.OK, f"the coordinator returned a session of {hex_of(sessions.address)} without a provider_id"
        )
    return ProviderSession(session, session.provider_id)
