"""Checks of sign-in: single-use nonces, foreign signatures, roles, and routes closed to a client's session."""

import time
from collections.abc import Sequence
from typing import Final

import attrs

from common.api.chain import SessionShape
from tests.conformance.asking import Answer, Body, TriedCoordinator, not_like, not_refused
from tests.conformance.buyer import Buyer

_SPEC: Final = "the specification, "
_BAD: Final = "invalid_request_error"


async def sign_in(coordinator: TriedCoordinator, buyer: Buyer) -> Answer:
    """Sign in correctly and return the response. Store the token in the buyer."""
    nonce = await coordinator.get("/auth/nonce", params={"address": buyer.address})
    answer = await coordinator.post("/auth/session", buyer.session_body(str(nonce.fields.get("nonce"))))
    buyer.token = str(answer.fields.get("token", "")) if answer.status == 200 else ""
    return answer


@attrs.frozen
class SessionTrials:
    """`buyer` and `other` are throw-away wallets. The checks sign both in if possible."""

    coordinator: TriedCoordinator
    buyer: Buyer
    other: Buyer

    async def run(self) -> None:
        await self._sessions()
        if self.buyer.token and self.other.token:
            await self._session_of_a_client_does_not_poll()

    def _judge(self, area: str, tried: str, expected: str, wrong: str | None, page: str) -> None:
        self.coordinator.judge(area, tried, expected, wrong, page)

    async def _sessions(self) -> None:
        answer = await sign_in(self.coordinator, self.buyer)
        wrong = not_like(answer, 200, SessionShape)
        if wrong is None and not self.buyer.token.startswith("svc_sess_"):
            wrong = f"token {self.buyer.token[:12]}…"
        if wrong is None and "provider_id" in answer.fields:
            wrong = "provider_id in a client's session"
        if wrong is None and abs(answer.fields["expires_at"] - time.time() - 86_400) > 120:
            wrong = f"expires_at {answer.fields['expires_at']}"
        self._judge("sessions", "sign-in of a client", "200, a token svc_sess_… for 24 h", wrong, _SPEC + "4.3")
        await sign_in(self.coordinator, self.other)

        nonce = (await self.coordinator.get("/auth/nonce", params={"address": self.buyer.address})).fields.get("nonce")
        right = self.buyer.session_body(str(nonce))
        spoiled: Sequence[tuple[str, Body, int, str, Body]] = (
            ("role that is none", {"role": "admin"}, 400, _BAD, {"code": None}),
            ("address that is none", {"address": "0x12"}, 400, _BAD, {"param": "address"}),
            ("another's address", {"address": self.other.address}, 401, "authentication_error",
             {"code": "invalid_signature"}),
            ("another's signature", {"signature": self.other.session_body(str(nonce))["signature"]}, 401,
             "authentication_error", {"code": "invalid_signature"}),
        )  # fmt: skip
        for tried, changed, status, type_, more in spoiled:
            wrong = not_refused(
                await self.coordinator.post("/auth/session", {**right, **changed}), status, type_, **more
            )
            self._judge("sessions", f"sign-in with {tried}", f"{status} {type_}", wrong, _SPEC + "4.3")
        fresh = (await self.coordinator.get("/auth/nonce", params={"address": self.buyer.address})).fields.get("nonce")
        body = self.buyer.session_body(str(fresh))
        first, again = [await self.coordinator.post("/auth/session", body) for _ in range(2)]
        wrong = not_like(first, 200) or not_refused(again, 400, _BAD, param="nonce")
        self._judge("sessions", "nonce used twice", "200, then 400 with param nonce", wrong, _SPEC + "4.3")
        fresh = (await self.coordinator.get("/auth/nonce", params={"address": self.buyer.address})).fields.get("nonce")
        body = self.buyer.session_body(str(fresh), role="provider")
        wrong = not_refused(await self.coordinator.post("/auth/session", body), 403, ("authentication_error", _BAD),
                            code="not_registered")  # fmt: skip
        self._judge("sessions", "sign-in as a provider who is none", "403 not_registered", wrong, _SPEC + "4.3")

    async def _session_of_a_client_does_not_poll(self) -> None:
        answer = await self.coordinator.get("/evm/jobs?state=Open&model=1&free=1", headers=self.buyer.session)
        wrong = not_refused(answer, 403, ("authentication_error", _BAD), code="not_registered")
        self._judge("poll", "poll with a client's session", "403 not_registered", wrong, _SPEC + "4.9")
        for tried, query in (("free without a model", "state=Open&free=1"), ("free without state", "model=1&free=1")):
            answer = await self.coordinator.get(f"/evm/jobs?{query}", headers=self.buyer.session)
            wrong = None if answer.status in (400, 403) else str(answer)
            self._judge("poll", tried, "refused: the three go together", wrong, _SPEC + "4.9")
