"""Markets for a client under test, each with one fault, and the client's expected reaction."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import attrs

from common.envelope import ResultBody
from common.scalars import read_hex
from tests.conformance.client_market import ClientMarket, Twist
from tests.conformance.market import Body, Script, error, lost, lost_after
from tests.conformance.verdicts import shortened

_SEVEN: Final = "protocol/guide.md#a-buyer-in-seven-calls"
_LOST: Final = "protocol/guide.md#waiting-and-answers-that-were-lost"
_PRICES: Final = "protocol/formats.md#prices"
_RESULTS: Final = "protocol/formats.md#sealed-result-v1"
_NO_JOB: Final = "0x" + "5a" * 32
_MAX_READS: Final = 16  # for a job of four seconds
_SOONEST: Final = 0.1  # minimum seconds between two reads

Ends = Literal["bought", "refused", "either"]


@attrs.frozen
class Purchase:
    """With `unsigned`, nothing may be submitted. With `open_bid`, the order must name no provider."""

    tried: str
    twist: Twist
    ends: Ends = "bought"
    page: str = _SEVEN
    unsigned: bool = False
    open_bid: bool = False
    further: Callable[[ClientMarket], str | None] | None = None

    @property
    def said(self) -> str:
        words = {"bought": "the result, and exit code 0", "refused": "no result, and another exit code than 0"}
        never = ", nothing submitted" if self.unsigned else ", never a second job"
        return words.get(self.ends, "the job's own result, or another exit code than 0") + never

    def gave_up(self, market: ClientMarket, wrote: str) -> bool:
        """A client may give up when its only submission failed. But then nothing shows how it would retry."""
        return bool(self.twist.submission) and market.secret not in wrote and len(market.submissions) == 1

    def wrong(self, market: ClientMarket, code: int, wrote: str) -> str | None:
        shown = market.secret in wrote
        if shown != (code == 0):
            return f"exit code {code} {'with' if shown else 'without'} the result: {shortened(wrote.strip())}"
        if self.ends == "bought" and not shown:
            return f"no result, exit code {code}: {shortened(wrote.strip())}"
        if self.ends == "refused" and shown:
            return "it took it for the result"
        if not (market.submissions if self.ends == "refused" and not self.unsigned else market.asked):
            return f"exit code {code} before it came to that: {shortened(wrote.strip())}"
        if self.unsigned and market.submissions:
            return f"a submission for {market.submissions[0].get('amount')}"
        if len(ids := {str(body["job_id"]).lower() for body in market.submissions}) > 1:
            return f"{len(ids)} jobs"
        return None if self.further is None else self.further(market)


# --- faulty markets --------------------------------------------------------------------------------------------


def _more(**changed: Any) -> Callable[[ClientMarket, Body], Body]:
    return lambda _, body: {**body, **changed}


def _authorised(**changed: Any) -> Callable[[ClientMarket, Body], Body]:
    return lambda _, quote: {**quote, "authorization": {**quote["authorization"], **changed}}


def _dear(_: ClientMarket, quote: Body) -> Body:
    """Return ten times the price, consistently."""
    cap = int(quote["cap"]) * 10 + 1000
    fee = cap * quote["fee_bps"] // 10_000
    amount = str(cap + fee + int(quote["gas_fee"]))
    payment = {**quote["authorization"], "value": amount}
    return {**quote, "cap": str(cap), "fee": str(fee), "amount": amount, "authorization": payment}


def _more_than_its_parts(_: ClientMarket, quote: Body) -> Body:
    amount = str(int(quote["amount"]) + 1_000)
    return {**quote, "amount": amount, "authorization": {**quote["authorization"], "value": amount}}


def _of_another_registry(_: ClientMarket, chain: Body) -> Body:
    return {**chain, "contracts": {**chain["contracts"], "job_registry": "0x" + "5a" * 20}}


def _of_another_key(_: ClientMarket, key: Body) -> Body:
    return {**key, "escrow_public_key": secrets.token_hex(32)}


def _of_another_job(market: ClientMarket, job: str, _: bytes) -> bytes:
    """Seal the result for another job of the same owner."""
    raw = read_hex(_NO_JOB, 32, "job_id")
    body = ResultBody(raw, {"text": market.secret}, {})
    return market.seal(market.result_keys[job], raw, body)


def _naming_another(market: ClientMarket, job: str, _: bytes) -> bytes:
    body = ResultBody(read_hex(_NO_JOB, 32, "job_id"), {"text": market.secret}, {})
    return market.seal(market.result_keys[job], read_hex(job, 32, "job_id"), body)


def _with_a_bit_turned(_: ClientMarket, __: str, sealed: bytes) -> bytes:
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


def _cut_short(_: ClientMarket, __: str, sealed: bytes) -> bytes:
    return sealed[:-40]


def _row_of_another(_: ClientMarket, row: Body) -> Body:
    if "id" not in row:
        return {**row, "job_id": _NO_JOB}
    return {**row, "id": _NO_JOB, "svc": {**row["svc"], "job_id": _NO_JOB}}


def _politely(market: ClientMarket) -> str | None:
    pauses = [b - a for a, b in zip(market.reads, market.reads[1:], strict=False)]
    if len(market.reads) > _MAX_READS or any(pause < _SOONEST for pause in pauses[2:]):
        return f"{len(market.reads)} reads, {min(pauses, default=0):.2f} s between two"
    return None


def _paid_anew(market: ClientMarket) -> str | None:
    first, *others = market.submissions
    if not others:
        return "one submission"
    if any(first[name] != others[-1][name] for name in ("signature", "c", "job_id")):
        return "another order"
    return None if first["auth_sig"] != others[-1]["auth_sig"] else "the payment of the first price"


PURCHASES: Final[Sequence[Purchase]] = (
    Purchase("ordinary purchase", Twist()),
    Purchase("price that changed", Twist(price_changes=True), further=_paid_anew),
    Purchase("submission whose answer is lost", Twist(submission=(lost_after(),)), page=_LOST),
    Purchase("submission that is lost on its way", Twist(submission=(lost(),)), "either", _LOST),
    Purchase("submission answered 503", Twist(submission=(Script(error(503, "chain_unreachable")),)), "either", _LOST),
    Purchase("submission answered 504, and mined",
             Twist(submission=(Script(error(504, "receipt_timeout", "0x" + "cd" * 32), performs=True),)), "either",
             _LOST),
    Purchase("index that is behind", Twist(unseen=3), page=_LOST),
    Purchase("job that takes four seconds", Twist(lasts=4.0), page=_LOST, further=_politely),
    Purchase("gateway that is behind", Twist(unstored=2), page="protocol/guide.md#the-gateway"),
    Purchase("job that failed", Twist(fails=True), "refused", "protocol/guide.md#the-life-of-a-job"),
    Purchase("quote above the formulas", Twist(quote=_dear), "refused", _PRICES, unsigned=True),
    Purchase("amount above its parts", Twist(quote=_more_than_its_parts), "refused", _PRICES, unsigned=True),
    Purchase("quote to be paid to another", Twist(quote=_authorised(to="0x" + "5a" * 20)), "either",
             "protocol/formats.md#job-id-and-payment"),
    Purchase("quote with the nonce of another job", Twist(quote=_authorised(nonce=_NO_JOB)), "either",
             "protocol/formats.md#job-id-and-payment"),
    Purchase("another deployment than the address book", Twist(chain=_of_another_registry), "refused",
             "protocol/formats.md#address-book", unsigned=True),
    Purchase("201 for another job", Twist(posted=_more(job_id=_NO_JOB)), "either"),
    Purchase("row of another job", Twist(job=_row_of_another), "refused"),
    Purchase("result of another job", Twist(result=_of_another_job), "refused", _RESULTS),
    Purchase("result that names another job", Twist(result=_naming_another), "refused",
             "protocol/formats.md#result-body-v1"),
    Purchase("result with a bit turned", Twist(result=_with_a_bit_turned), "refused", "protocol/formats.md#frames"),
    Purchase("result that was cut short", Twist(result=_cut_short), "refused", "protocol/formats.md#frames"),
    Purchase("open bid", Twist(), open_bid=True, page="protocol/formats.md#escrow-evidence"),
    Purchase("escrow with evidence of another key", Twist(key=_of_another_key), "refused",
             "protocol/formats.md#escrow-evidence", unsigned=True, open_bid=True),
)  # fmt: skip
