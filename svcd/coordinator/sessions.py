"""Sign-in of the provider at the coordinator."""

import attrs
import httpx

from common.api.chain import SessionShape
from common.scalars import hex_of
from svc.wire.sessions import Sessions
from svc.wire.transport import ApiError, ConnectionFailed, Transport
from svcd.coordinator.op_signer import OpSigner


@attrs.frozen(slots=True)
class ProviderSession:
    """Session of a provider."""

    session: SessionShape = attrs.field(repr=False)
    provider_id: int


@attrs.frozen(slots=True)
class SignInRefused:
    """Sign-in failed. `status` is of the error answer, or None without an answer."""

    status: int | None
    detail: str

    @property
    def final(self) -> bool:
        """Return whether another attempt would be refused again. An unreadable answer of success may be a proxy's."""
        return self.status is not None and 400 <= self.status < 500 and self.status != httpx.codes.TOO_MANY_REQUESTS

    @property
    def advice(self) -> str:
        """Return advice for the operator."""
        if self.detail == "not_registered":
            return "not a registered provider: the wallet registers with the market first"
        return f"{self.detail} ({self.status})" if self.status is not None else self.detail


def sessions_of(transport: Transport, signer: OpSigner) -> Sessions:
    """Return the sessions of a provider's wallet."""

    async def sign_in(nonce: str) -> dict[str, object]:
        return signer.session(nonce, "provider")

    return Sessions(transport, signer.wallet.address, sign_in)


async def sign_in(sessions: Sessions, deadline: float | None = None) -> ProviderSession | SignInRefused:
    """Return the current session, or a new one."""
    try:
        session = await sessions.current(deadline)
    except ApiError as refused:
        if refused.param == "nonce":  # the last of several that were used up or evicted
            return SignInRefused(None, "the nonce was gone when it was used")
        return SignInRefused(refused.status, refused.code or refused.type)
    except ConnectionFailed as failed:
        return SignInRefused(None, failed.message)
    if session.provider_id is None:
        sessions.drop(session)
        return SignInRefused(httpx.codes.OK, f"a session of {hex_of(sessions.address)} without a provider_id")
    return ProviderSession(session, session.provider_id)
