"""Checks of orders, one at a time, and the facts that they read from the chain."""

import base64
import hashlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import msgspec
import pytest

from common import abi, framing
from common.api import errors
from common.api.fields import read_object
from common.api.limits import MAX_ORDER_LIFETIME_S, MAX_SLA_S
from common.eip712 import struct_hash
from common.refusal import Refused
from common.sealed_stream import HEAD_BYTES
from coordinatord.api.files.files_sql import FileRow
from coordinatord.api.orders import faults
from coordinatord.api.orders.bodies import MarketProbe, OrderBody, PaidOrder, read_submission, to_paid_order
from coordinatord.api.orders.faults import Fault, sla_not_allowed
from coordinatord.api.orders.validation import (
    container_faults,
    order_faults,
    payment_faults,
    read_chain_facts,
    upload_fault,
)
from coordinatord.chain.contracts import job_registry
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.contracts.payment_token import PaymentToken
from coordinatord.chain.rpc.client import RpcCall
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.chain.rpc.views import Reverted
from tests.support.fakes.submissions import Body, Submitter

_CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"


def _paid(line: Body) -> PaidOrder:
    paid = to_paid_order(read_object(OrderBody, line))
    assert paid is not None
    return paid


def _faults(line: Body, submitter: Submitter, now: float) -> list[Fault]:
    """Return the faults of the order and its payment."""
    paid = _paid(line)
    payment = payment_faults(paid, submitter.domains, submitter.registry, submitter.terms)
    return [*order_faults(paid.order, submitter.domains, now), *payment]


def test_each_check_reports_its_own_fault(submitter: Submitter) -> None:
    line = submitter.line()
    for body, expected in (
        (line, []),
        (line | {"job_id": "0x" + "00" * 32}, [faults.WRONG_JOB_ID, faults.WRONG_PAYER]),
        (submitter.line(expires_at=int(time.time()) - 1), [faults.EXPIRED]),
        (line | {"signature": line["auth_sig"]}, [faults.WRONG_SIGNER]),
        (submitter.line(amount=1), [faults.WRONG_AMOUNT]),
        (line | {"auth_sig": line["signature"]}, [faults.WRONG_PAYER]),
    ):
        assert _faults(body, submitter, time.time()) == expected


def test_submission_identity_ignores_signatures(submitter: Submitter) -> None:
    """Comparing signatures would make an order that was signed again a second post. Comparing fewer fields would
    answer a changed order with the post of the earlier one."""
    paid = _paid(submitter.line())
    body = paid.order
    same = [
        attrs.evolve(paid, payment=b"\x01" * 65),
        attrs.evolve(paid, order=attrs.evolve(body, signature=b"\x01" * 65)),
        attrs.evolve(paid, order=attrs.evolve(body, auth_sig=b"\x01" * 65)),
    ]
    terms = ("model_id", "sla_secs", "rate_in", "rate_out", "units_in", "units_out", "designated", "expires_at")
    others = [
        *(attrs.evolve(paid, order=attrs.evolve(body, **{term: getattr(body, term) + 1})) for term in terms),
        attrs.evolve(paid, order=attrs.evolve(body, job_id=b"\x01" * 32)),
        attrs.evolve(paid, order=attrs.evolve(body, c=b"\x01" * 32)),
        attrs.evolve(paid, amount=paid.amount + 1),
    ]
    assert {one.dedupe_digest(_CID) for one in same} == {paid.dedupe_digest(_CID)}
    digests = [
        paid.dedupe_digest(_CID),
        paid.dedupe_digest(_CID[:-1] + "a"),
        *(one.dedupe_digest(_CID) for one in others),
    ]
    assert len(set(digests)) == len(digests) == len(terms) + 5


def test_amount_is_the_quoted_one_to_the_unit(submitter: Submitter) -> None:
    quoted = _paid(submitter.line()).amount
    found = [_faults(submitter.line(amount=quoted + off), submitter, time.time()) for off in (-1, 0, 1)]
    assert found == [[faults.WRONG_AMOUNT], [], [faults.WRONG_AMOUNT]]


def test_expiry_and_window_bounds_are_enforced(submitter: Submitter) -> None:
    now = 1_800_000_000
    expiries = [now, now + 1, now + MAX_ORDER_LIFETIME_S, now + MAX_ORDER_LIFETIME_S + 1]
    lines = [submitter.line(expires_at=expires_at) for expires_at in expiries]
    lines += [submitter.line(expires_at=now + 1, sla_secs=sla) for sla in (MAX_SLA_S, MAX_SLA_S + 1)]
    assert [_faults(line, submitter, now) for line in lines] == [
        [faults.EXPIRED],
        [],
        [],
        [faults.EXPIRES_TOO_LATE],
        [],
        [faults.SLA_TOO_LONG],
    ]


def test_container_with_impossible_length_is_refused(submitter: Submitter) -> None:
    line = submitter.line()
    sealed = base64.b64decode(line["container"])
    # the last frame is too short for its tag
    length = HEAD_BYTES + framing.HEADER_BYTES + framing.SEALED_FRAME_BYTES + 1
    longer = sealed.ljust(length, b"\0")
    [fault] = container_faults(_paid({**line, "container": base64.b64encode(longer).decode()}).order)
    assert (fault.code, fault.param) == ("commitment_mismatch", "container")


PROBE: Body = {"model_id": "1", "sla_secs": "3600", "units_in": "1", "units_out": "1"}


def test_body_without_rates_is_a_probe(submitter: Submitter) -> None:
    assert isinstance(read_submission(PROBE), MarketProbe)
    assert isinstance(read_submission(submitter.line()), OrderBody)
    for rate in ("rate_in", "rate_out"):
        with pytest.raises(Refused, match="rate"):
            read_submission(PROBE | {rate: "1"})


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"auth_sig": None}, "container", "container_without_payment"),
        ({"auth_sig": None, "container": None, "container_cid": _CID}, "container", "container_without_payment"),
        ({"container": None}, "container", "container_required"),
        ({"container_cid": _CID}, "container_cid", "container_ambiguous"),
        ({"amount": None}, "amount", None),
        ({"auth_sig": None, "container": None}, None, "none"),
        ({"auth_sig": None, "container": None, "amount": None}, None, "none"),
        ({"container": None, "container_cid": _CID}, None, "none"),
    ],
)
def test_payment_and_container_are_required_together(
    submitter: Submitter, changed: Body, param: str | None, code: str | None
) -> None:
    body = {name: value for name, value in (submitter.line() | changed).items() if value is not None}
    if code == "none":
        assert isinstance(read_submission(body), OrderBody)
        return
    with pytest.raises(Refused) as refusal:
        read_submission(body)
    assert (refusal.value.param, refusal.value.code) == (param, code)


def test_submission_is_paid_with_signature_and_amount(submitter: Submitter) -> None:
    body = _paid(submitter.line()).order
    assert to_paid_order(attrs.evolve(body, auth_sig=None)) is None
    assert to_paid_order(attrs.evolve(body, amount=None)) is None


def test_quote_of_an_order_is_for_its_own_terms(submitter: Submitter) -> None:
    line = submitter.line(rate_in=3_000_000, rate_out=5_000_000, units_in=7, units_out=11)
    quote = _paid(line).order.quote(submitter.terms)
    assert (quote.cap, quote.amount) == (76, int(line["amount"]))


def test_submission_digest_is_stable_across_releases(submitter: Submitter) -> None:
    """With a different digest, an upgrade would post orders again that are already in the outbox."""
    paid = _paid(submitter.line())
    amount = abi.uint(paid.amount)
    stored = hashlib.sha256(b"post" + paid.order.job_id + struct_hash(paid.order) + amount + _CID.encode()).digest()
    assert paid.dedupe_digest(_CID) == stored


def test_post_calldata_has_owner_amount_and_signatures(submitter: Submitter) -> None:
    paid = _paid(submitter.line())
    body = paid.order
    assert paid.calldata(_CID) == job_registry.post_calldata(
        body,
        submitter.wallet.address,
        amount=paid.amount,
        task_cid=_CID,
        order_signature=body.signature,
        payment=paid.payment,
    )


def test_fault_has_a_field_a_code_and_a_line_code() -> None:
    refusal = faults.WRONG_PAYER.as_refused()
    assert (refusal.param, refusal.code) == ("auth_sig", "invalid_payment_signature")
    assert faults.new_fault("m", "p", "code").line_code == "code"
    assert faults.new_fault("m", "p", "code", line_code="line").line_code == "line"
    assert faults.new_fault("m", "p").line_code == "invalid_line"


def test_remedy_is_found_by_code_line_code_or_field() -> None:
    assert faults.WRONG_PAYER.remedy == errors.ERRORS_BY_CODE["invalid_payment_signature"].remedy
    assert faults.EXPIRED.remedy == errors.LINE_ERRORS["order_expired"][1]
    assert faults.WRONG_JOB_ID.remedy == errors.UNCODED_ERRORS[400].remedy


def test_refused_window_lists_the_accepted_ones() -> None:
    assert sla_not_allowed(None) is sla_not_allowed([]) is faults.SLA_NOT_ALLOWED
    told = sla_not_allowed([60, 3600])
    assert "one of 60, 3600 (" in told.message
    assert attrs.evolve(told, message="") == attrs.evolve(faults.SLA_NOT_ALLOWED, message="")


def test_upload_must_exist_and_reproduce_the_commitment(submitter: Submitter) -> None:
    body = _paid(submitter.line()).order
    now = datetime.now(UTC)
    upload = FileRow("file-1", body.owner, "input", "f", _CID, body.c, 1, 0, False, now, now)
    assert upload_fault(body, upload) is None
    assert upload_fault(body, attrs.evolve(upload, commitment=b"\x01" * 32)) is faults.WRONG_UPLOAD
    assert upload_fault(body, None) is faults.UNKNOWN_UPLOAD


def test_price_beyond_the_contracts_type_is_a_fault_of_the_line(submitter: Submitter) -> None:
    dear = {"rate_in": str(2**128 - 1), "units_in": str(2**32 - 1)}
    overflow, *others = _faults(submitter.line() | dear, submitter, time.time())
    assert (overflow.code, overflow.line_code) == ("cap_overflow", "cap_overflow")
    assert others == [faults.WRONG_SIGNER]


@attrs.define
class Chain:
    """A node that knows models 1 and 2, a window of one hour, and an owner that is a contract."""

    trial: bytes | Reverted = b""
    asked: list[tuple[str, ...]] = attrs.field(factory=list)

    async def batch(self, calls: Sequence[RpcCall]) -> list[msgspec.Raw | RpcError]:
        return [self._answer(call) for call in calls]

    def _answer(self, call: RpcCall) -> msgspec.Raw | RpcError:
        of: Any = call.params[0]
        if call.method == "eth_getCode":
            self.asked.append(("code", of))
            return _hex(b"\x60" if of == "0x" + "ee" * 20 else b"")
        data = bytes.fromhex(of["data"][2:])
        name = {
            abi.selector("modelEnabled(uint32)"): "model",
            abi.selector("slaAllowed(uint32)"): "sla",
            abi.selector("balanceOf(address)"): "balance",
        }.get(data[:4])
        if name is None:
            self.asked.append(("trial",))
            if isinstance(self.trial, Reverted):
                return RpcError(3, "execution reverted", self.trial.data, RpcErrorKind.REVERTED)
            return _hex(self.trial)
        word = int.from_bytes(data[4:], "big")
        self.asked.append((name, str(word)))
        if name == "balance":
            return _hex(b"") if word == 0xBB else _hex(abi.uint(word % 1000))
        return _hex(abi.boolean(word in ((1, 2) if name == "model" else (3600,))))


def _hex(content: bytes) -> msgspec.Raw:
    return msgspec.Raw(b'"0x' + content.hex().encode() + b'"')


OWNER, HAS_CODE, UNTOLD = b"\x0a" * 20, b"\xee" * 20, b"\0" * 19 + b"\xbb"


def _ordered(submitter: Submitter, owner: bytes = OWNER, *, model_id: int = 1, sla_secs: int = 3600) -> OrderBody:
    body = _paid(submitter.line()).order
    return attrs.evolve(body, owner=owner, model_id=model_id, sla_secs=sla_secs, expires_at=1)


async def test_chain_is_read_once_per_model_and_owner(submitter: Submitter) -> None:
    chain: Any = Chain()
    registry, token = JobRegistry(chain, b"\x11" * 20), PaymentToken(chain, b"\x14" * 20)
    lines = [
        _ordered(submitter),
        _ordered(submitter, model_id=2, sla_secs=7),
        _ordered(submitter, model_id=3),
        _ordered(submitter, HAS_CODE),
        _ordered(submitter, UNTOLD),
    ]
    facts = await read_chain_facts(registry, token, lines)
    assert [[*facts.find_faults(line)] for line in lines] == [
        [],
        [],
        [faults.MODEL_NOT_ENABLED],
        [faults.PAYER_HAS_CODE],
        [],
    ]
    assert (facts.windows, facts.refusal) == (None, None)
    # Without a balance from the token, an owner is not treated as poor.
    assert facts.balances == {owner: int.from_bytes(owner, "big") % 1000 for owner in (OWNER, HAS_CODE)}
    assert sorted({kind for kind, *_ in chain.asked}) == ["balance", "code", "model"]
    assert len(chain.asked) == len(set(chain.asked)) == 9


@pytest.mark.parametrize("trial", [b"", Reverted(b"\x01\x02\x03\x04")])
async def test_post_that_is_tried_is_asked_about_with_its_window(submitter: Submitter, trial: bytes | Reverted) -> None:
    chain: Any = Chain(trial)
    registry, token = JobRegistry(chain, b"\x11" * 20), PaymentToken(chain, b"\x14" * 20)
    lines = [_ordered(submitter), _ordered(submitter, sla_secs=7)]
    facts = await read_chain_facts(
        registry, token, lines, windows=True, trial=registry.simulation_view(b"post", b"\x15" * 20)
    )
    assert [[*facts.find_faults(line)] for line in lines] == [[], [faults.SLA_NOT_ALLOWED]]
    assert facts.windows == {3600}
    assert facts.refusal == (trial if isinstance(trial, Reverted) else None)
    assert facts.balances == {OWNER: int.from_bytes(OWNER, "big") % 1000}
