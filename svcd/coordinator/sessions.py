"""The provider's session: signed in once, renewed before it ends or when the coordinator no longer knows it."""

import math
from collections.abc import Sequence
from typing import Final

import attrs
import httpx
import structlog
import trio

from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.escrow import Release
from common.messages.jobs import Claim, Fail, Order, Settle
from common.messages.providers import Ask, AskSnapshot, RequestCapacity, SetIdentity
from common.messages.sessions import SvcSession
from common.scalars import base64_of, hex_of
from common.secp256k1 import Wallet
from svcd.base.timings import Clock
from svcd.coordinator.requests import CoordinatorReply, Requests, Unanswered

# The bodies that this provider signs, as the coordinator's routes take them.

Body = dict[str, object]


@attrs.frozen(slots=True)
class OpSigner:
    wallet: Wallet
    domains: Domains

    @property
    def address(self) -> str:
        return hex_of(self.wallet.address)

    def session(self, nonce: str, role: str) -> Body:
        signature = self._sign(self.domains.session.digest(SvcSession(self.wallet.address, nonce)))
        return {"address": self.address, "nonce": nonce, "signature": signature, "role": role}

    def claim(self, job_id: bytes, order: Order, issued_at: int) -> Body:
        """`terms` is not signed: it keeps a coordinator from relaying the claim for another order of the same id."""
        return {
            "op": "claim",
            "job_id": hex_of(job_id),
            "issued_at": issued_at,
            "signature": self._sign(self.domains.jobs.digest(Claim(job_id, issued_at))),
            "terms": hex_of(struct_hash(order)),
        }

    def settle(self, job_id: bytes, completion_tok: int, issued_at: int) -> Body:
        """Without the result, which is not signed: the caller adds `result` or `result_cid`."""
        return {
            "op": "settle",
            "job_id": hex_of(job_id),
            "completion_tok": completion_tok,
            "issued_at": issued_at,
            "signature": self._sign(self.domains.jobs.digest(Settle(job_id, completion_tok, issued_at))),
        }

    def fail(self, job_id: bytes, issued_at: int) -> Body:
        signature = self._sign(self.domains.jobs.digest(Fail(job_id, issued_at)))
        return {"op": "fail", "job_id": hex_of(job_id), "issued_at": issued_at, "signature": signature}

    def set_identity(self, box_key: bytes, evidence: bytes, issued_at: int) -> Body:
        return {
            "op": "set_identity",
            "box_key": hex_of(box_key),
            "evidence": hex_of(evidence),
            "issued_at": issued_at,
            "signature": self._sign(self.domains.providers.digest(SetIdentity(box_key, evidence, issued_at))),
        }

    def request_capacity(self, n: int, issued_at: int) -> Body:
        signature = self._sign(self.domains.providers.digest(RequestCapacity(n, issued_at)))
        return {"op": "request_capacity", "n": n, "issued_at": issued_at, "signature": signature}

    def asks(self, provider_id: int, signed_at: int, quotes: Sequence[Ask]) -> Body:
        snapshot = AskSnapshot(provider_id, signed_at, tuple(quotes))
        return {
            "snapshot": {
                "provider_id": provider_id,
                "signed_at": signed_at,
                "quotes": [
                    {
                        "model_id": quote.model_id,
                        "sla": quote.sla,
                        "rate_in": str(quote.rate_in),
                        "rate_out": str(quote.rate_out),
                    }
                    for quote in quotes
                ],
            },
            "signature": self._sign(self.domains.asks.digest(snapshot)),
        }

    def release(self, job_id: bytes, seed_wrap: bytes, ct_hash: bytes, response_pubkey: bytes, issued_at: int) -> Body:
        message = Release(job_id, seed_wrap, ct_hash, response_pubkey, issued_at)
        return {
            "job_id": hex_of(job_id),
            "seed_wrap": base64_of(seed_wrap),
            "ct_hash": hex_of(ct_hash),
            "response_pubkey": response_pubkey.hex(),
            "issued_at": issued_at,
            "signature": self._sign(self.domains.escrow.digest(message)),
        }

    def _sign(self, digest: bytes) -> str:
        return hex_of(self.wallet.sign(digest))


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
