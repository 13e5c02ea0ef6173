"""Receipt of a job: a JSON file that proves order, payment and delivery to a third party.

`claims_of` builds the claims of a receipt. `verified` checks a file: it recomputes every field from signatures and from
logs with a proof of inclusion in a block. The verifier still has to check that the blocks belong to the chain, and that
the job registry's address is this market's (`docs/protocol/formats.md`, Receipts).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from common import quotes
from common.address_book import AddressBook
from common.artifacts import load
from common.contract_events import event_values, order_of
from common.domains import SigningDomain
from common.eip712 import Domain
from common.inclusion.contents import Log
from common.keccak import keccak256
from common.messages.jobs import Order
from common.messages.payments import job_payment
from common.quotes import FeeTerms
from common.receipt_steps import Step, read_step
from common.refusal import Refused
from common.scalars import hex_of, read_hex, read_uint
from common.secp256k1 import recover
from common.strict_json import parse

VERSION: Final = 1
MAX_BYTES: Final = 64 << 20  # far above the proofs of three full blocks
ENDS: Final = ("JobSettled", "JobFailed", "JobReclaimed", "JobCancelled")

_JOBS: Final = load("JobRegistry")
_AUTHORIZATION_USED: Final = keccak256(b"AuthorizationUsed(address,bytes32)")  # EIP-3009; the nonce is the job id
_TRANSFER: Final = keccak256(b"Transfer(address,address,uint256)")
_KEYS: Final = (
    *("v", "job_id", "owner", "market", "order", "fees", "task_cid", "order_signature", "payment"),
    *("provider_id", "end", "steps"),
)


@attrs.frozen(slots=True)
class ReceiptMarket:
    """Chain, job registry and payment token of a receipt."""

    chain_id: int
    job_registry: bytes
    token: bytes
    token_name: str
    token_version: str

    @property
    def orders(self) -> SigningDomain[Order]:
        return SigningDomain(Domain("SVC Jobs", "2", self.chain_id, self.job_registry))

    @property
    def payments(self) -> SigningDomain[Any]:
        return SigningDomain(Domain(self.token_name, self.token_version, self.chain_id, self.token))

    def as_json(self) -> dict[str, str]:
        return {
            "chain_id": str(self.chain_id),
            "job_registry": hex_of(self.job_registry),
            "token": hex_of(self.token),
            "token_name": self.token_name,
            "token_version": self.token_version,
        }


@attrs.frozen(slots=True)
class Fact:
    """One proved fact. `rests_on` names the signature, block or knowledge that proves the fact."""

    name: str
    value: str
    rests_on: str


@attrs.frozen(slots=True)
class Block:
    hash: bytes
    number: int
    time: int


@attrs.frozen(slots=True)
class VerifiedReceipt:
    """Facts that a receipt proves, provided that `blocks` belong to the chain."""

    job_id: bytes
    market: ReceiptMarket
    facts: tuple[Fact, ...]
    blocks: tuple[Block, ...]

    def require_market(self, book: AddressBook) -> None:
        """Refuse a receipt of a market other than the address book's."""
        token = book.token_domain
        known = ReceiptMarket(book.chain_id, book.job_registry, book.paytoken, token.name, token.version)
        if self.market != known:
            raise Refused("this receipt belongs to another market than the address book", "market")


@attrs.frozen(slots=True)
class Events:
    """Values of a job's events. `claimed` is None for a cancelled job."""

    posted: Mapping[str, Any]
    claimed: Mapping[str, Any] | None
    ended: Mapping[str, Any]
    end: str

    @property
    def names(self) -> tuple[str, ...]:
        return ("JobPosted", self.end) if self.claimed is None else ("JobPosted", "JobClaimed", self.end)


def claims_of(market: ReceiptMarket, events: Events, order_signature: bytes) -> dict[str, Any]:
    """Return a receipt without its steps, from the events of the job."""
    posted, order = events.posted, order_of(events.posted)
    terms = FeeTerms(fee_bps=posted["feeBps"], gas_fee=posted["gasFee"])
    amount = quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)
    return {
        "v": VERSION,
        "job_id": hex_of(posted["jobId"]),
        "owner": hex_of(posted["owner"]),
        "market": market.as_json(),
        "order": {name: _as_text(value) for name, value in attrs.asdict(order).items()},
        "fees": {"fee_bps": str(terms.fee_bps), "gas_fee": str(terms.gas_fee)},
        "task_cid": posted["taskCid"],
        "order_signature": hex_of(order_signature),
        "payment": {"amount": str(amount), "signature": hex_of(posted["paySig"])},
        "provider_id": None if events.claimed is None else str(events.claimed["providerId"]),
        "end": _end(events),
    }


def order_signature_in(call_data: bytes, market: ReceiptMarket, posted: Mapping[str, Any]) -> bytes | None:
    """Find the owner's order signature in the calldata of the post, also inside a batch or multicall.

    In ABI data, a `bytes` of 65 follows a word with its length. Try each of them until one recovers to the owner.
    """
    digest, length = market.orders.digest(order_of(posted)), (65).to_bytes(32, "big")
    at = call_data.find(length)
    while at >= 0:
        found = call_data[at + 32 : at + 97]
        if len(found) == 65 and recover(digest, found) == posted["owner"]:
            return found
        at = call_data.find(length, at + 1)
    return None


def verified(raw: bytes) -> VerifiedReceipt:
    """Verify a receipt file. Refused, naming the field at fault, if the file does not prove its claims."""
    if len(raw) > MAX_BYTES:
        raise Refused(f"a receipt has at most {MAX_BYTES} bytes")
    given = parse(raw)
    if not isinstance(given, dict) or given.get("v") != VERSION:
        raise Refused(f"v must be {VERSION}: this is another version, or not a receipt", "v")
    if unknown := sorted(given.keys() ^ set(_KEYS)):
        raise Refused(f"{unknown[0]} is missing, or is not a field of a receipt", unknown[0])
    market, steps = _read_market(given["market"]), _read_steps(given["steps"])
    events = _events(market, steps)
    signature = read_hex(given["order_signature"], 65, "order_signature")
    _compare(given | {"steps": None}, claims_of(market, events, signature) | {"steps": None}, "")
    _check_signatures(market, events, signature)
    _check_money(market, events, steps)
    return VerifiedReceipt(
        job_id=events.posted["jobId"],
        market=market,
        facts=_facts(market, events, steps),
        blocks=tuple(
            {step.header.hash: Block(step.header.hash, step.header.number, step.header.time) for step in steps}.values()
        ),
    )


def _read_market(given: object) -> ReceiptMarket:
    if not isinstance(given, dict) or given.keys() != {field.name for field in attrs.fields(ReceiptMarket)}:
        raise Refused("market must hold chain_id, job_registry, token, token_name and token_version", "market")
    for key in ("token_name", "token_version"):
        if not isinstance(given[key], str):
            raise Refused(f"market.{key} must be a string", f"market.{key}")
    return ReceiptMarket(
        chain_id=read_uint(given["chain_id"], 53, "market.chain_id"),
        job_registry=read_hex(given["job_registry"], 20, "market.job_registry"),
        token=read_hex(given["token"], 20, "market.token"),
        token_name=given["token_name"],
        token_version=given["token_version"],
    )


def _read_steps(given: object) -> list[Step]:
    if not isinstance(given, list) or not 2 <= len(given) <= 3:
        raise Refused("steps must be the post, the claim if there was one, and the end", "steps")
    steps = [read_step(each, f"steps.{n}") for n, each in enumerate(given)]
    for n in range(1, len(steps)):
        if steps[n - 1].place >= steps[n].place:
            raise Refused(f"steps.{n} must come after steps.{n - 1} on the chain", f"steps.{n}")
    return steps


def _events(market: ReceiptMarket, steps: Sequence[Step]) -> Events:
    """Return the events that the steps prove. All must be the job registry's, and of the same job."""
    names = [step.event for step in steps]
    allowed = ["JobPosted", "JobCancelled"] if len(steps) == 2 else ["JobPosted", "JobClaimed", names[-1]]
    if names != allowed or names[-1] not in ENDS or (len(steps) == 3) == (names[-1] == "JobCancelled"):
        raise Refused(
            f"steps must be JobPosted, JobClaimed and an end, or JobPosted and JobCancelled; not {', '.join(names)}",
            "steps",
        )
    values = []
    for n, step in enumerate(steps):
        if step.log.address != market.job_registry:
            raise Refused(f"steps.{n}.log must be a log of the job registry", "market.job_registry")
        try:
            values.append(event_values(_JOBS, step.event, step.log.topics, step.log.data))
        except Refused as wrong:
            raise Refused(f"steps.{n}.log: {wrong.message}", f"steps.{n}.log") from None
        if values[n]["jobId"] != values[0]["jobId"]:
            raise Refused(f"steps.{n} must be of the job that steps.0 posts", f"steps.{n}.log")
    return Events(values[0], values[1] if len(values) == 3 else None, values[-1], names[-1])


def _compare(given: object, proved: object, at: str) -> None:
    """Refuse a claim of the file that differs from the value that the file's proofs give."""
    if isinstance(proved, dict):
        if not isinstance(given, dict) or given.keys() != proved.keys():
            raise Refused(f"{at} must hold {', '.join(proved)}", at)
        for key, value in proved.items():
            _compare(given[key], value, f"{at}.{key}" if at else key)
    elif given != proved or type(given) is not type(proved):
        raise Refused(f"{at} is {given!r}, but the proofs give {proved!r}"[:400], at)


def _check_signatures(market: ReceiptMarket, events: Events, signature: bytes) -> None:
    posted, order = events.posted, order_of(events.posted)
    owner = posted["owner"]
    if quotes.derive_job_id(owner, order.c) != posted["jobId"]:
        raise Refused("job_id must be keccak256 of the owner and the order's commitment", "job_id")
    if recover(market.orders.digest(order), signature) != owner:
        raise Refused("order_signature must be the owner's signature over this order", "order_signature")
    payment = job_payment(owner, market.job_registry, _amount(events), order.expires_at, posted["jobId"])
    if recover(market.payments.digest(payment), posted["paySig"]) != owner:
        raise Refused(
            "payment.signature must be the owner's signature over this amount of this token", "payment.signature"
        )


def _check_money(market: ReceiptMarket, events: Events, steps: Sequence[Step]) -> None:
    if events.claimed is None:
        return
    amount, owner = _amount(events), bytes(12) + events.posted["owner"]
    used = Log(market.token, (_AUTHORIZATION_USED, owner, events.posted["jobId"]), b"")
    registry = bytes(12) + market.job_registry
    transfer = Log(market.token, (_TRANSFER, owner, registry), amount.to_bytes(32, "big"))
    if not {used, transfer} <= set(steps[1].logs):
        raise Refused("the claim must have collected the payment from the owner in this token", "market.token")
    if events.end != "JobSettled":
        return
    order, ended = order_of(events.posted), events.ended
    rates, units = (order.rate_in, order.rate_out), (order.units_in, order.units_out)
    if ended["cost"] != quotes.cost(*rates, *units, completion_tok=ended["completionTok"]):
        raise Refused("end.cost must be the cost at the order's rates", "end.cost")
    if ended["cost"] + ended["treasuryShare"] + ended["refund"] != amount:
        raise Refused("end: cost, fees and refund must add up to the collected amount", "end.refund")


def _amount(events: Events) -> int:
    order, posted = order_of(events.posted), events.posted
    terms = FeeTerms(fee_bps=posted["feeBps"], gas_fee=posted["gasFee"])
    return quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)


def _end(events: Events) -> dict[str, str]:
    ended = events.ended
    if events.end != "JobSettled":
        return {"event": events.end}
    return {
        "event": events.end,
        "completion_tok": str(ended["completionTok"]),
        "cost": str(ended["cost"]),
        "treasury_share": str(ended["treasuryShare"]),
        "refund": str(ended["refund"]),
        "result_cid": ended["resultCid"],
    }


def _facts(market: ReceiptMarket, events: Events, steps: Sequence[Step]) -> tuple[Fact, ...]:
    order, owner, amount = order_of(events.posted), hex_of(events.posted["owner"]), _amount(events)
    blocks = [f"block {step.header.number}" for step in steps]
    by_owner = f"the signature of {owner}"
    registry = f"chain {market.chain_id}, {hex_of(market.job_registry)}"
    window = f"{order.sla_secs} s, model {order.model_id}"
    found = [
        Fact("registry", registry, "your knowledge of this market's address"),
        Fact("owner", owner, by_owner),
        Fact("order", f"{window}, {order.units_in} units in, {order.units_out} out at most", by_owner),
        Fact("rates", f"{order.rate_in} in, {order.rate_out} out, per 10^6 units", by_owner),
        Fact("commitment", hex_of(order.c), by_owner),
        Fact("payment", f"{amount} base units of {hex_of(market.token)} at most", by_owner),
        Fact("posted", f"{hex_of(steps[0].transaction)}, content {events.posted['taskCid']}", blocks[0]),
    ]
    if events.claimed is not None:
        claim = f"by provider {events.claimed['providerId']}, {hex_of(steps[1].transaction)}"
        found += [Fact("claimed", claim, blocks[1]), Fact("collected", f"{amount} base units", blocks[1])]
    ended = events.ended
    if events.end == "JobSettled":
        shares = f"{ended['cost']} to the provider, {ended['treasuryShare']} in fees, {ended['refund']} back"
        found.append(
            Fact(
                "result",
                f"{ended['resultCid']}, {ended['completionTok']} units",
                f"the provider's statement in {blocks[-1]}",
            )
        )
        found.append(Fact("shares", shares, blocks[-1]))
    found.append(Fact("ended", f"{events.end}, {hex_of(steps[-1].transaction)}", blocks[-1]))
    return tuple(found)


def _as_text(value: bytes | int) -> str:
    return hex_of(value) if isinstance(value, bytes) else str(value)
