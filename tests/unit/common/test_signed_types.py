"""Every signed type against eth-account and the vectors, by the types' EIP-712 names."""

import re

import pytest
from attrs import fields as attrs_fields
from eth_account.messages import encode_typed_data
from eth_utils import decode_hex as raw
from hypothesis import given
from hypothesis import strategies as st

from common.eip712 import Domain, struct_hash
from common.messages.escrow import HandoverAuth, HandoverKeys, Release
from common.messages.jobs import Cancel, Claim, Fail, Order, Settle
from common.messages.payments import ReceiveWithAuthorization, job_payment, packed_job_payment
from common.messages.providers import Ask, AskSnapshot, RequestCapacity, SetIdentity
from common.messages.sessions import ResultKey, SvcSession
from common.messages.tabs import TabKey, TabVoucher
from tests.vectors.vector_file import cases

SIGNED = [
    *(Order, Cancel, Claim, Settle, Fail),
    *(SetIdentity, RequestCapacity, AskSnapshot),
    *(ReceiveWithAuthorization, Release, HandoverAuth, HandoverKeys, SvcSession, ResultKey),
    *(TabKey, TabVoucher),
]
DOMAIN = Domain("SVC Jobs", "2", 31337, b"\x11" * 20)
VECTORS = cases("eip712.json")


def listed(kind):
    """Return [(type, name)] of the fields, from the EIP-712 type."""
    return [tuple(field.split(" ")) for field in re.match(r"\w+\((.*?)\)", kind.TYPE)[1].split(",")]


def oracle_types(kind):
    return {
        one.__name__: [{"type": type_, "name": name} for type_, name in listed(one)]
        for one in ([kind, Ask] if kind is AskSnapshot else [kind])
    }


def value_of(type_):
    if type_.startswith("uint"):
        return st.integers(0, 2 ** int(type_[4:]) - 1)
    return {
        "bytes32": st.binary(min_size=32, max_size=32),
        "address": st.binary(min_size=20, max_size=20),
        "bytes": st.binary(max_size=300),
        "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
        "Ask[]": st.lists(made(Ask), max_size=5).map(tuple),
    }[type_]


def made(kind):
    return st.builds(kind, *[value_of(type_) for type_, _ in listed(kind)])


def oracle_message(message):
    return {
        name: [oracle_message(quote) for quote in getattr(message, field.name)]
        if type_ == "Ask[]"
        else getattr(message, field.name)
        for (type_, name), field in zip(listed(type(message)), attrs_fields(type(message)), strict=True)
    }


def read(kind, described):
    """Read a message from a vector, where bytes are hex and integers are decimal strings."""

    def value(type_, given_value):
        if type_ == "Ask[]":
            return tuple(read(Ask, quote) for quote in given_value)
        if type_.startswith("uint"):
            return int(given_value)
        return given_value if type_ == "string" else raw(given_value)

    return kind(*[value(type_, described[name]) for type_, name in listed(kind)])


@pytest.mark.parametrize("kind", SIGNED, ids=lambda kind: kind.__name__)
def test_struct_hash_and_digest_match_eth_account(kind):
    @given(made(kind))
    def check(message):
        oracle = encode_typed_data(
            {"name": "SVC Jobs", "version": "2", "chainId": 31337, "verifyingContract": b"\x11" * 20},
            oracle_types(kind),
            oracle_message(message),
        )
        assert struct_hash(message) == oracle.body
        assert DOMAIN.separator == oracle.header

    check()


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_a_message_hashes_as_in_the_vectors(case):
    [kind] = [kind for kind in SIGNED if kind.__name__ == case["primary_type"]]
    assert case["type"] == kind.TYPE
    assert raw(case["type_hash"]) == kind.TYPE_HASH
    assert struct_hash(read(kind, case["message"])) == raw(case["struct_hash"])


def test_the_vectors_hold_every_signed_type():
    assert {case["primary_type"] for case in VECTORS} == {kind.__name__ for kind in SIGNED}


def misfits():
    for kind in [*SIGNED, Ask]:
        for position, (type_, name) in enumerate(listed(kind)):
            if type_.startswith("uint"):
                unfit = [2 ** int(type_[4:]), -1]
            elif type_ in {"bytes32", "address"}:
                length = 32 if type_ == "bytes32" else 20
                unfit = [bytes(length - 1), bytes(length + 1)]
            else:
                continue
            for value in unfit:
                shown = value if isinstance(value, int) else f"{len(value)} bytes"
                yield pytest.param(kind, position, value, id=f"{kind.__name__}.{name}-{shown}")


@pytest.mark.parametrize(("kind", "position", "value"), list(misfits()))
def test_a_value_that_does_not_fit_its_field_makes_no_message(kind, position, value):
    fitting = {"bytes32": bytes(32), "address": bytes(20), "bytes": b"", "string": "", "Ask[]": ()}
    values = [fitting.get(type_, 0) for type_, _ in listed(kind)]
    values[position] = value
    name = attrs_fields(kind)[position].name
    with pytest.raises(ValueError, match=rf"^{name} "):
        kind(*values)


def test_payment_is_bound_to_its_job_and_expires_a_second_later():
    owner, registry, job_id = b"\x01" * 20, b"\x02" * 20, b"\x03" * 32
    assert job_payment(owner, registry, 500, 1_800_000_000, job_id) == ReceiveWithAuthorization(
        from_=owner, to=registry, value=500, valid_after=0, valid_before=1_800_000_001, nonce=job_id
    )


@given(
    st.binary(min_size=20, max_size=20),
    st.binary(min_size=20, max_size=20),
    st.integers(0, 2**256 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=32, max_size=32),
)
def test_packed_payment_equals_the_message(owner, registry, amount, expires_at, job_id):
    terms = owner, registry, amount, expires_at, job_id
    assert packed_job_payment(*terms) == job_payment(*terms).packed()
