import math
from fractions import Fraction

import pytest
from eth_utils import decode_hex as raw
from hypothesis import assume, given
from hypothesis import strategies as st

from common.quotes import FeeTerms, Quote, Settlement, amount, derive_job_id, divide_payment, quote
from common.refusal import Refused
from tests.vectors.vector_file import cases

VECTORS = cases("quotes.json")
ACCEPTED = [case for case in VECTORS if "refused" not in case]
U16, U32, U128 = 2**16 - 1, 2**32 - 1, 2**128 - 1

rates = st.integers(0, U128) | st.integers(0, 10**9)
units = st.integers(0, U32) | st.integers(0, 10**4)
orders = st.tuples(rates, rates, units, units)
charges = st.builds(FeeTerms, st.integers(0, U16), st.integers(0, U128))


def order_of(case):
    return [int(case[name]) for name in ("rate_in", "rate_out", "units_in", "units_out")]


def terms_of(case):
    return FeeTerms(int(case["fee_bps"]), int(case["gas_fee"]))


@pytest.mark.parametrize("case", cases("job_id.json"), ids=lambda case: case["name"])
def test_a_job_id_is_as_in_the_vectors(case):
    assert derive_job_id(raw(case["owner"]), raw(case["c"])) == raw(case["job_id"])


@pytest.mark.parametrize(("owner", "c"), [(19, 33), (21, 31), (20, 0), (21, 32), (32, 20)])
def test_a_job_id_is_made_of_exactly_20_and_32_bytes(owner, c):
    with pytest.raises(ValueError, match="the owner must have 20 bytes"):
        derive_job_id(bytes(owner), bytes(c))


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
def test_quote_and_settlement_are_as_in_the_vectors(case):
    assert quote(*order_of(case), terms_of(case)) == Quote(
        cap=int(case["cap"]), fee=int(case["fee"]), gas_fee=int(case["gas_fee"]), amount=int(case["amount"])
    )
    assert amount(*order_of(case), terms_of(case)) == int(case["amount"])
    shares = divide_payment(*order_of(case), terms_of(case), completion_tok=int(case["completion_tok"]))
    assert shares == Settlement(int(case["provider"]), int(case["treasury"]), int(case["owner"]))


def refused(reason):
    found = [case for case in VECTORS if case.get("refused") == reason]
    return pytest.mark.parametrize("case", found, ids=lambda case: case["name"])


@refused("cap_overflow")
def test_a_cap_beyond_uint128_is_refused(case):
    with pytest.raises(Refused) as refusal:
        quote(*order_of(case), terms_of(case))
    assert refusal.value.code == "cap_overflow"


@refused("too_many_units")
def test_more_output_than_the_order_pays_for_is_refused(case):
    with pytest.raises(Refused) as refusal:
        divide_payment(*order_of(case), terms_of(case), completion_tok=int(case["completion_tok"]))
    assert refusal.value.param == "completion_tok"


@given(orders, charges)
def test_a_quote_is_exact_arithmetic_or_an_overflow(order, terms):
    rate_in, rate_out, units_in, units_out = order
    cap = max(1, math.ceil(Fraction(rate_in * units_in + rate_out * units_out, 10**6)))
    if cap > U128:
        with pytest.raises(Refused):
            quote(*order, terms)
        return
    quoted = quote(*order, terms)
    assert quoted.cap == cap
    assert quoted.fee == math.floor(Fraction(cap * terms.fee_bps, 10**4))
    assert quoted.amount == cap + quoted.fee + terms.gas_fee


@given(orders, charges, st.integers(0, U32))
def test_settlement_shares_add_up(order, terms, tok):
    tok = min(tok, order[3])
    try:
        quoted = quote(*order, terms)
    except Refused:
        assume(False)
    shares = divide_payment(*order, terms, completion_tok=tok)
    assert shares.provider_amount + shares.treasury_amount + shares.refund == quoted.amount
    assert 1 <= shares.provider_amount <= quoted.cap
    assert terms.gas_fee <= shares.treasury_amount <= quoted.fee + terms.gas_fee
    assert shares.refund >= 0


@pytest.mark.parametrize(("fee_bps", "gas_fee"), [(2**16, 0), (-1, 0), (0, 2**128), (0, -1)])
def test_terms_that_no_registry_can_hold_are_refused(fee_bps, gas_fee):
    with pytest.raises(ValueError, match="does not fit"):
        FeeTerms(fee_bps, gas_fee)
