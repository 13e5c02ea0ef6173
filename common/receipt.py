"""Receipt of a job: a JSON file that proves order, payment and delivery to a third party.

`receipt_fields` builds a receipt's claims. `verify_receipt` checks a file: it recomputes every field from signatures
and from logs with a proof of inclusion in a block. The caller must still check that the blocks belong to the chain, and
that the job registry's address is this market's (`docs/protocol/formats.md`, Receipts).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from common import quotes
from common.address_book import AddressBook
from common.artifacts import load_artifact
from common.contract_events import event_values, order_of
from common.domains import SigningDomain
from common.eip712 import Domain
from common.inclusion.contents import Log
from common.keccak import keccak256
from common.messages.jobs import Order
from common.messages.payments import job_payment
from common.messages.tabs import TabKey, TabVoucher
from common.quotes import FeeTerms
from common.receipt_steps import ReceiptStep, read_step
from common.receipt_tab import TAB_FIELD, tab_facts
from common.refusal import Refused
from common.scalars import hex_of, read_hex, read_uint
from common.secp256k1 import recover_address
from common.strict_json import parse
from common.tab.transcript import TabOrder

VERSION: Final = 1
MAX_RECEIPT_BYTES: Final = 64 << 20  # far above the size of proofs from three full blocks
END_EVENTS: Final = ("JobSettled", "JobFailed", "JobReclaimed", "JobCancelled")

_JOB_REGISTRY_ARTIFACT: Final = load_artifact("JobRegistry")
_AUTHORIZATION_USED_TOPIC: Final = keccak256(b"AuthorizationUsed(address,bytes32)")  # EIP-3009; the nonce is the job id
_TRANSFER_TOPIC: Final = keccak256(b"Transfer(address,address,uint256)")
_RECEIPT_FIELDS: Final = (
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
    def tabs(self) -> SigningDomain[TabKey | TabVoucher]:
        return SigningDomain(Domain("SVC Tabs", "1", self.chain_id, self.job_registry))

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
class ProvedFact:
    """One fact of a receipt. `rests_on` names what proves the fact: a signature, a block, or the reader's knowledge."""

    name: str
    value: str
    rests_on: str


@attrs.frozen(slots=True)
class ReceiptBlock:
    """Block of a step. The caller must check that the block belongs to the chain."""

    hash: bytes
    number: int
    time: int


@attrs.frozen(slots=True)
class VerifiedReceipt:
    """Facts that a receipt proves, provided that `blocks` belong to the chain."""

    job_id: bytes
    market: ReceiptMarket
    facts: tuple[ProvedFact, ...]
    blocks: tuple[ReceiptBlock, ...]

    def require_market(self, book: AddressBook) -> None:
        """Refuse a receipt of a market other than the address book's."""
        token = book.token_domain
        known = ReceiptMarket(book.chain_id, book.job_registry, book.paytoken, token.name, token.version)
        if self.market != known:
            raise Refused("this receipt is for another market than the address book", "market")


@attrs.frozen(slots=True)
class JobEvents:
    """Decoded events of a job: the post, the claim (None for a cancelled job) and the end."""

    posted: Mapping[str, Any]
    claimed: Mapping[str, Any] | None
    ended: Mapping[str, Any]
    end_event: str

    @property
    def names(self) -> tuple[str, ...]:
        return ("JobPosted", self.end_event) if self.claimed is None else ("JobPosted", "JobClaimed", self.end_event)


def receipt_fields(market: ReceiptMarket, events: JobEvents, order_signature: bytes) -> dict[str, Any]:
    """Return all fields of a receipt except `steps`, from the events of the job."""
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
        "end": _end_fields(events),
    }


def find_order_signature(call_data: bytes, market: ReceiptMarket, posted: Mapping[str, Any]) -> bytes | None:
    """Find the owner's order signature in the calldata of the post, even inside a batch or multicall.

    In ABI data, a 65-byte value follows a word with its length. Try the 65 bytes after each word of value 65 until a
    signature recovers to the owner.
    """
    digest, length = market.orders.digest(order_of(posted)), (65).to_bytes(32, "big")
    at = call_data.find(length)
    while at >= 0:
        candidate = call_data[at + 32 : at + 97]
        if len(candidate) == 65 and recover_address(digest, candidate) == posted["owner"]:
            return candidate
        at = call_data.find(length, at + 1)
    return None


def verify_receipt(raw: bytes) -> VerifiedReceipt:
    """Verify a receipt file. If the file does not prove its claims, raise Refused with the field at fault."""
    if len(raw) > MAX_RECEIPT_BYTES:
        raise Refused(f"a receipt must have at most {MAX_RECEIPT_BYTES} bytes")
    given = parse(raw)
    if not isinstance(given, dict) or given.get("v") != VERSION:
        raise Refused(f"v must be {VERSION}; this file has another version or is not a receipt", "v")
    tab = given.pop(TAB_FIELD, None)
    if unknown := sorted(given.keys() ^ set(_RECEIPT_FIELDS)):
        raise Refused(f"{unknown[0]} is missing, or is not a field of a receipt", unknown[0])
    market, steps = _read_market(given["market"]), _read_steps(given["steps"])
    events = _proved_events(market, steps)
    signature = read_hex(given["order_signature"], 65, "order_signature")
    _check_claims(given | {"steps": None}, receipt_fields(market, events, signature) | {"steps": None}, "")
    _check_signatures(market, events, signature)
    _check_payments(market, events, steps)
    return VerifiedReceipt(
        job_id=events.posted["jobId"],
        market=market,
        facts=_proved_facts(market, events, steps) + (() if tab is None else _tab_facts(tab, market, events)),
        blocks=tuple(
            {
                step.header.hash: ReceiptBlock(step.header.hash, step.header.number, step.header.time) for step in steps
            }.values()
        ),
    )


def _read_market(given: object) -> ReceiptMarket:
    if not isinstance(given, dict) or given.keys() != {field.name for field in attrs.fields(ReceiptMarket)}:
        raise Refused(
            "market must have exactly the fields chain_id, job_registry, token, token_name and token_version", "market"
        )
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


def _read_steps(given: object) -> list[ReceiptStep]:
    if not isinstance(given, list) or not 2 <= len(given) <= 3:
        raise Refused("steps must be the post, the claim (unless the job was cancelled) and the end", "steps")
    steps = [read_step(each, f"steps.{n}") for n, each in enumerate(given)]
    for n in range(1, len(steps)):
        if steps[n - 1].chain_position >= steps[n].chain_position:
            raise Refused(f"steps.{n} must come after steps.{n - 1} on the chain", f"steps.{n}")
    return steps


def _proved_events(market: ReceiptMarket, steps: Sequence[ReceiptStep]) -> JobEvents:
    """Return the events that the steps prove. Refuse events of another contract, or of different jobs."""
    names = [step.event for step in steps]
    allowed = ["JobPosted", "JobCancelled"] if len(steps) == 2 else ["JobPosted", "JobClaimed", names[-1]]
    if names != allowed or names[-1] not in END_EVENTS or (len(steps) == 3) == (names[-1] == "JobCancelled"):
        raise Refused(
            f"steps must be JobPosted, JobClaimed and an end, or JobPosted and JobCancelled; not {', '.join(names)}",
            "steps",
        )
    values = []
    for n, step in enumerate(steps):
        if step.log.address != market.job_registry:
            raise Refused(f"steps.{n}.log must be a log of the job registry", "market.job_registry")
        try:
            values.append(event_values(_JOB_REGISTRY_ARTIFACT, step.event, step.log.topics, step.log.data))
        except Refused as refusal:
            raise Refused(f"steps.{n}.log: {refusal.message}", f"steps.{n}.log") from None
        if values[n]["jobId"] != values[0]["jobId"]:
            raise Refused(f"steps.{n} must belong to the job that steps.0 posts", f"steps.{n}.log")
    return JobEvents(values[0], values[1] if len(values) == 3 else None, values[-1], names[-1])


def _check_claims(given: object, proved: object, path: str) -> None:
    """Refuse the file if a claim at `path` or below differs from the value that the proofs give."""
    if isinstance(proved, dict):
        if not isinstance(given, dict) or given.keys() != proved.keys():
            raise Refused(f"{path} must have exactly the fields {', '.join(proved)}", path)
        for key, value in proved.items():
            _check_claims(given[key], value, f"{path}.{key}" if path else key)
    elif given != proved or type(given) is not type(proved):
        raise Refused(f"{path} is {given!r}, but the proofs give {proved!r}"[:400], path)


def _check_signatures(market: ReceiptMarket, events: JobEvents, signature: bytes) -> None:
    posted, order = events.posted, order_of(events.posted)
    owner = posted["owner"]
    if quotes.derive_job_id(owner, order.c) != posted["jobId"]:
        raise Refused("job_id must be keccak256 of the owner and the order's commitment", "job_id")
    if recover_address(market.orders.digest(order), signature) != owner:
        raise Refused("order_signature must be the owner's signature over this order", "order_signature")
    payment = job_payment(owner, market.job_registry, _paid_amount(events), order.expires_at, posted["jobId"])
    if recover_address(market.payments.digest(payment), posted["paySig"]) != owner:
        raise Refused(
            "payment.signature must be the owner's signature over this amount of this token", "payment.signature"
        )


def _check_payments(market: ReceiptMarket, events: JobEvents, steps: Sequence[ReceiptStep]) -> None:
    if events.claimed is None:
        return
    amount, owner = _paid_amount(events), bytes(12) + events.posted["owner"]
    used = Log(market.token, (_AUTHORIZATION_USED_TOPIC, owner, events.posted["jobId"]), b"")
    registry = bytes(12) + market.job_registry
    transfer = Log(market.token, (_TRANSFER_TOPIC, owner, registry), amount.to_bytes(32, "big"))
    if not {used, transfer} <= set(steps[1].logs):
        raise Refused("the claim must have collected the payment from the owner in this token", "market.token")
    if events.end_event != "JobSettled":
        return
    order, ended = order_of(events.posted), events.ended
    rates, units = (order.rate_in, order.rate_out), (order.units_in, order.units_out)
    if ended["cost"] != quotes.cost(*rates, *units, completion_tok=ended["completionTok"]):
        raise Refused("end.cost must be the cost at the order's rates", "end.cost")
    if ended["cost"] + ended["treasuryShare"] + ended["refund"] != amount:
        raise Refused("the cost, fees and refund in end must add up to the collected amount", "end.refund")


def _paid_amount(events: JobEvents) -> int:
    order, posted = order_of(events.posted), events.posted
    terms = FeeTerms(fee_bps=posted["feeBps"], gas_fee=posted["gasFee"])
    return quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)


def _end_fields(events: JobEvents) -> dict[str, str]:
    ended = events.ended
    if events.end_event != "JobSettled":
        return {"event": events.end_event}
    return {
        "event": events.end_event,
        "completion_tok": str(ended["completionTok"]),
        "cost": str(ended["cost"]),
        "treasury_share": str(ended["treasuryShare"]),
        "refund": str(ended["refund"]),
        "result_cid": ended["resultCid"],
    }


def _proved_facts(market: ReceiptMarket, events: JobEvents, steps: Sequence[ReceiptStep]) -> tuple[ProvedFact, ...]:
    order, owner, amount = order_of(events.posted), hex_of(events.posted["owner"]), _paid_amount(events)
    blocks = [f"block {step.header.number}" for step in steps]
    by_owner = f"the signature of {owner}"
    registry = f"chain {market.chain_id}, {hex_of(market.job_registry)}"
    terms = f"window of {order.sla_secs} s, model {order.model_id}"
    facts = [
        ProvedFact("registry", registry, "your knowledge of this market's address"),
        ProvedFact("owner", owner, by_owner),
        ProvedFact("order", f"{terms}, {order.units_in} units in, at most {order.units_out} units out", by_owner),
        ProvedFact("rates", f"{order.rate_in} in, {order.rate_out} out, per 10^6 units", by_owner),
        ProvedFact("commitment", hex_of(order.c), by_owner),
        ProvedFact("payment", f"at most {amount} base units of {hex_of(market.token)}", by_owner),
        ProvedFact("posted", f"{hex_of(steps[0].transaction)}, content {events.posted['taskCid']}", blocks[0]),
    ]
    if events.claimed is not None:
        claim = f"by provider {events.claimed['providerId']}, {hex_of(steps[1].transaction)}"
        facts += [ProvedFact("claimed", claim, blocks[1]), ProvedFact("collected", f"{amount} base units", blocks[1])]
    ended = events.ended
    if events.end_event == "JobSettled":
        shares = f"{ended['cost']} to the provider, {ended['treasuryShare']} in fees, {ended['refund']} refunded"
        facts.append(
            ProvedFact(
                "result",
                f"{ended['resultCid']}, {ended['completionTok']} units",
                f"the provider's statement in {blocks[-1]}",
            )
        )
        facts.append(ProvedFact("shares", shares, blocks[-1]))
    facts.append(ProvedFact("ended", f"{events.end_event}, {hex_of(steps[-1].transaction)}", blocks[-1]))
    return tuple(facts)


def _tab_facts(given: object, market: ReceiptMarket, events: JobEvents) -> tuple[ProvedFact, ...]:
    if events.claimed is None or events.end_event != "JobSettled":
        raise Refused(f"{TAB_FIELD} is only for a settled job", TAB_FIELD)
    posted, order = events.posted, order_of(events.posted)
    tab_order = TabOrder(
        posted["jobId"],
        posted["owner"],
        events.claimed["providerId"],
        order.rate_in,
        order.rate_out,
        events.ended["completionTok"],
    )
    facts = tab_facts(given, market.chain_id, market.job_registry, events.ended["resultCid"], tab_order, market)
    return tuple(ProvedFact(*fact) for fact in facts)


def _as_text(value: bytes | int) -> str:
    return hex_of(value) if isinstance(value, bytes) else str(value)
