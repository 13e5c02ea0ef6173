"""Checks of ops and asks, signed by a wallet that is not a provider, so none is relayed."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from common.api.limits import MAX_ASKS_BODY_BYTES
from common.messages.jobs import Claim
from common.messages.providers import Ask, AskSnapshot
from common.scalars import hex_of
from tests.conformance.asking import Answer, Body, TriedCoordinator, not_refused
from tests.conformance.buyer import Buyer

_SPEC: Final = "the specification, "
_BAD: Final = "invalid_request_error"
_NO_JOB: Final = "0x" + "5a" * 32


@attrs.frozen
class Operations:
    coordinator: TriedCoordinator
    buyer: Buyer

    async def run(self) -> None:
        await self._ops()
        await self._asks()

    def _judge(self, area: str, tried: str, expected: str, wrong: str | None, page: str) -> None:
        self.coordinator.judge(area, tried, expected, wrong, page)

    async def _ops(self) -> None:
        now = int(time.time())
        signature = self.buyer.wallet.sign(self.buyer.domains.jobs.digest(Claim(bytes.fromhex(_NO_JOB[2:]), now)))
        claim = {"op": "claim", "job_id": _NO_JOB, "issued_at": now, "signature": hex_of(signature)}
        settle = {**claim, "op": "settle", "completion_tok": 1}
        both = {**settle, "result": "AAAA", "result_cid": "bafk"}
        wrong = not_refused(await self.coordinator.post("/evm/ops", claim), 401, "authentication_error",
                            code="invalid_session")  # fmt: skip
        self._judge("ops", "claim without a session", "401 invalid_session", wrong, _SPEC + "4.10")
        spoiled: Sequence[tuple[str, Body, Body]] = (
            ("op that is none", {**claim, "op": "work"}, {"param": "op"}),
            ("claim of a job id that is none", {**claim, "job_id": "0x12"}, {"param": "job_id"}),
            ("claim signed with 64 bytes", {**claim, "signature": "0x" + "11" * 64}, {"param": "signature"}),
            ("settle without a result", settle, {"code": "result_required"}),
            ("settle with two results", both, {"code": "result_ambiguous"}),
        )
        for tried, body, more in spoiled:
            wrong = not_refused(
                await self.coordinator.post("/evm/ops", body, headers=self.buyer.session), 400, _BAD, **more
            )
            self._judge("ops", tried, f"400, {more}", wrong, _SPEC + "4.10")
        answer = await self.coordinator.post("/evm/ops", claim, headers=self.buyer.session)
        wrong = not_refused(answer, 403, "invalid_op_signature")
        self._judge("ops", "claim by who is no provider", "403 invalid_op_signature", wrong, _SPEC + "4.10")

    async def _asks(self) -> None:
        now = int(time.time())

        def body(signed_at: int, count: int = 1, signer: Callable[[bytes], bytes] = self.buyer.wallet.sign) -> Body:
            quotes = tuple(Ask(n + 1, 3600, 1, 1) for n in range(count))
            digest = self.buyer.domains.asks.digest(AskSnapshot(4_294_967_295, signed_at, quotes))
            sent = [{"model_id": q.model_id, "sla": q.sla, "rate_in": "1", "rate_out": "1"} for q in quotes]
            snapshot = {"provider_id": 4_294_967_295, "signed_at": signed_at, "quotes": sent}
            return {"snapshot": snapshot, "signature": hex_of(signer(digest))}

        async def put(sent: Body, **more: Any) -> Answer:
            return await self.coordinator.ask("PUT", "/evm/asks", json=sent, **more)

        wrong = not_refused(await put(body(now)), 401, "authentication_error", code="invalid_session")
        self._judge("asks", "asks without a session", "401 invalid_session", wrong, _SPEC + "4.11")
        types = ("invalid_op_signature", "authentication_error", _BAD)
        refusals: Sequence[tuple[str, Body, int, Body]] = (
            ("asks of who is no provider", body(now), 403, {"code": "not_registered"}),
            ("asks signed by nobody", body(now, signer=lambda _: bytes(65)), 403, {"code": "invalid_signature"}),
            ("65 quotes", body(now, 65), 400, {}),
            ("asks signed more than an hour ahead", body(now + 4000), 400, {}),
            (
                "asks of more than 32 KiB",
                {**body(now), "more": "x" * MAX_ASKS_BODY_BYTES},
                413,
                {"code": "body_too_large"},
            ),
        )
        for tried, sent, status, more in refusals:
            wrong = not_refused(await put(sent, headers=self.buyer.session), status, types, **more)
            self._judge("asks", tried, f"{status} {more.get('code', '')}".strip(), wrong, _SPEC + "4.11")
