"""Checks of quotes and submissions. Refusals are tried with a wallet that owns nothing; with a wallet that may spend,
jobs are cancelled, bought, and bought in a batch."""

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

import attrs

from common import quotes
from common.api.market import QuoteBodyShape
from common.box import SecretKey
from common.cid import cid_of
from common.scalars import hex_of, read_hex
from common.secp256k1 import Wallet
from tests.conformance.asking import Answer, Body, TriedCoordinator, not_like, not_refused
from tests.conformance.buyer import Buyer

_SPEC: Final = "the specification, "
_BAD: Final = "invalid_request_error"
_NO_JOB: Final = "0x" + "5a" * 32
_JOB_SECONDS: Final = 120.0
_LIFE: Final = "protocol/guide.md#the-life-of-a-job"
_LOST: Final = "protocol/guide.md#waiting-and-answers-that-were-lost"


@attrs.define
class Quotes:
    """Requests that are refused before relaying, and the arithmetic of quotes. `model` is one of the catalogue."""

    coordinator: TriedCoordinator
    buyer: Buyer
    model_id: int
    token_domain: Mapping[str, str]
    container: bytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.container = self.buyer.container(SecretKey.generate().public, b"conformance")

    async def run(self) -> None:
        await self._quoted()
        await self._refused_orders()
        await self._refused_submissions()
        await self._refused_cancels()
        await self._strict_json()

    def _judge(self, area: str, tried: str, expected: str, wrong: str | None, page: str) -> None:
        self.coordinator.judge(area, tried, expected, wrong, page)

    def order(self, **changed: Any) -> Body:
        return self.buyer.order(self.container, **{"model_id": self.model_id, **changed})

    async def _quoted(self) -> None:
        for tried, terms in (("quote", {}), ("quote at the least price", {"rate_in": 0, "rate_out": 0})):
            order = self.order(**terms)
            answer = await self.coordinator.post("/v1/jobs", order)
            wrong = self.not_a_quote(answer, 402, order)
            if wrong is None and answer.headers.get("x-svc-retryable") != "false":
                wrong = f"x-svc-retryable: {answer.headers.get('x-svc-retryable')}"
            expected = "402, cap, fee and amount by the formulas, the payment's fields, x-svc-retryable: false"
            self._judge("quotes", tried, expected, wrong, "protocol/formats.md#prices")

    def not_a_quote(self, answer: Answer, status: int, order: Body) -> str | None:
        """Check the arithmetic, and the payment for the order."""
        if (wrong := not_like(answer, status, QuoteBodyShape)) is not None:
            return wrong
        told = answer.fields["quote"]
        terms = quotes.FeeTerms(told["fee_bps"], int(told["gas_fee"]))
        rates, units = (
            (int(order["rate_in"]), int(order["rate_out"])),
            (int(order["units_in"]), int(order["units_out"])),
        )
        right = quotes.quote(*rates, *units, terms)
        for name in ("cap", "fee", "amount"):
            if int(told[name]) != getattr(right, name):
                return f"{name} {told[name]} and not {getattr(right, name)}"
        chain, payment = self.buyer.chain, told["authorization"]
        wanted = {
            "to": hex_of(chain.job_registry),
            "value": told["amount"],
            "valid_after": "0",
            "valid_before": str(int(order["expires_at"]) + 1),
            "nonce": order["job_id"],
            "domain": {
                **self.token_domain,
                "chainId": chain.chain_id,
                "verifyingContract": hex_of(chain.paytoken),
            },
        }
        for name, value in wanted.items():
            if payment[name] != value:
                return f"authorization.{name} {payment[name]}"
        accepted = [(way["scheme"], way["network"]) for way in answer.fields["accepts"]]
        return None if ("eip3009", f"eip155:{chain.chain_id}") in accepted else f"accepts {accepted}"

    # --- refusals -----------------------------------------------------------------------------------------

    async def _refused_orders(self) -> None:
        now = int(time.time())
        strange = Buyer(Wallet(secrets.token_bytes(32)), self.buyer.chain)
        most = 2**128 - 1
        spoiled: tuple[tuple[str, Body, Body], ...] = (
            ("order signed by another", {**self.order(), "signature": strange.order(self.container)["signature"]},
             {"code": "invalid_order_signature"}),
            ("order whose terms were changed", {**self.order(), "units_out": "1001"},
             {"code": "invalid_order_signature"}),
            ("order with the high s of its signature", {**self.order(), **_high_s(self.order())},
             {"code": "invalid_order_signature"}),
            ("job id of another order", self.order(job_id=_NO_JOB), {"param": "job_id"}),
            ("order that expired", self.order(expires_at=now - 10), {"param": "expires_at"}),
            ("order that expires in more than a day", self.order(expires_at=now + 86_400 + 900),
             {"param": "expires_at"}),
            ("window of more than a day", self.order(sla_secs=86_401), {"param": "sla_secs"}),
            ("cap beyond 128 bits", self.order(rate_in=most, rate_out=most, units_in=2**32 - 1, units_out=2**32 - 1),
             {"code": "cap_overflow"}),
            ("rate with a fraction", self.order(rate_in=1) | {"rate_in": 1.5}, {"param": "rate_in"}),
            ("rate with a leading zero", self.order(rate_in=1) | {"rate_in": "01"}, {"param": "rate_in"}),
            ("units beyond 32 bits", self.order() | {"units_in": 2**32}, {"param": "units_in"}),
            ("commitment without 0x", self.order() | {"c": "5a" * 32}, {"param": "c"}),
            ("container without a payment", self.order(container="AAAA"), {"code": "container_without_payment"}),
        )  # fmt: skip
        for tried, body, more in spoiled:
            wrong = not_refused(await self.coordinator.post("/v1/jobs", body), 400, _BAD, **more)
            self._judge("quotes", tried, f"400, {more}", wrong, _SPEC + "4.6")

    async def _refused_submissions(self) -> None:
        order = self.order()
        quoted = await self.coordinator.post("/v1/jobs", order)
        if self.not_a_quote(quoted, 402, order) is not None:
            self.coordinator.report.leave("orders", "submissions", "there is no quote to pay", _SPEC + "4.6")
            return
        amount = int(quoted.fields["quote"]["amount"])
        paid = self.buyer.paid(order, amount, self.container)
        unsealed = self.buyer.paid(order, amount, None)
        other = self.buyer.container(SecretKey.generate().public, b"another")
        spoiled: tuple[tuple[str, Body, str], ...] = (
            ("payment without a container", unsealed, "container_required"),
            ("container and container_cid", {**paid, "container_cid": str(cid_of(other))}, "container_ambiguous"),
            ("upload that is none", {**unsealed, "container_cid": str(cid_of(other))}, "unknown_container"),
            ("another container", {**self.buyer.paid(order, amount, other)}, "commitment_mismatch"),
            ("container of another version", self.buyer.paid(order, amount, b"\x02" + self.container[1:]),
             "bad_version"),
            ("container that is too short", self.buyer.paid(order, amount, self.container[:100]), "too_short"),
            ("payment for another amount", {**paid, "auth_sig": self.buyer.paid(order, amount + 1, None)["auth_sig"]},
             "invalid_payment_signature"),
        )  # fmt: skip
        for tried, body, code in spoiled:
            wrong = not_refused(await self.coordinator.post("/v1/jobs", body), 400, _BAD, code=code)
            self._judge("orders", tried, f"400 {code}", wrong, _SPEC + "4.6")
        stale = await self.coordinator.post("/v1/jobs", self.buyer.paid(order, amount + 1, self.container))
        wrong = self.not_a_quote(stale, 409, order)
        self._judge("orders", "amount of another price", "409 and a fresh quote", wrong, _SPEC + "4.6")
        poor = await self.coordinator.post("/v1/jobs", paid)
        wrong = not_refused(poor, 409, _BAD, code="InsufficientBalance")
        expected = "409 InsufficientBalance"
        self._judge("orders", "submission that its owner cannot pay", expected, wrong,
                    "protocol/contracts.md#contract-errors")  # fmt: skip

    async def _refused_cancels(self) -> None:
        now = int(time.time())
        refusals: tuple[tuple[str, Body, int, Body], ...] = (
            ("cancel of no job", self.buyer.cancel(_NO_JOB, now), 409, {"code": "NotTheOwner"}),
            ("cancel signed 700 s ago", self.buyer.cancel(_NO_JOB, now - 700), 409, {"code": "StaleOp"}),
            ("cancel signed 700 s ahead", self.buyer.cancel(_NO_JOB, now + 700), 409, {"code": "StaleOp"}),
            ("cancel without a signature", {"issued_at": now}, 400, {"param": "signature"}),
        )
        for tried, body, status, more in refusals:
            wrong = not_refused(await self.coordinator.post(f"/v1/jobs/{_NO_JOB}/cancel", body), status, _BAD, **more)
            self._judge("cancel", tried, f"{status}, {more}", wrong, "protocol/guide.md#times")

    async def _strict_json(self) -> None:
        for tried, text in (
            ("body that is no JSON", b"{"),
            ("body with a key twice", b'{"model_id": 1, "model_id": 1}'),
            ("body with NaN", b'{"model_id": NaN}'),
            ("body that is an array", b"[]"),
            ("body nested 40 deep", b'{"model_id":' + b"[" * 40 + b"]" * 40 + b"}"),
        ):
            sent = {"content": text, "headers": {"content-type": "application/json"}}
            wrong = not_refused(await self.coordinator.ask("POST", "/v1/jobs", **sent), 400, _BAD, code=None)
            self._judge("bodies", tried, "400", wrong, "protocol/formats.md#strict-json")


def _high_s(order: Body) -> Body:
    order_of_curve = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    raw = read_hex(order["signature"], 65, "signature")
    s = order_of_curve - int.from_bytes(raw[32:64], "big")
    return {"signature": hex_of(raw[:32] + s.to_bytes(32, "big") + bytes([55 - raw[64]]))}
