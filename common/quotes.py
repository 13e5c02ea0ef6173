"""Compute the price and cost of a job, and the shares of the payment at its settle.

Rates are prices per 10^6 units. The arithmetic is exact, in integers, and the same as the job registry's:

    cap    = max(1, ⌈(rate_in · units_in + rate_out · units_out) / 10^6⌉), at most 2^128 − 1
    fee    = ⌊cap · fee_bps / 10^4⌋
    amount = cap + fee + gas_fee
    cost   = cap with completion_tok instead of units_out

Only `cap` can overflow. Its numerator is below 2 · 2^128 · 2^32 = 2^161. With fee_bps below 2^16 and 10^4 above 2^13,
fee is below 2^128 · 2^16 / 2^13 = 2^131. gas_fee is below 2^128, so amount is below 2^132 and fits a uint256.
"""

from typing import Final

import attrs

from common.keccak import keccak256
from common.messages.fields import uint128
from common.refusal import Refused

_UNITS_PER_RATE: Final = 10**6
_BASIS_POINTS_PER_WHOLE: Final = 10**4


def derive_job_id(owner: bytes, c: bytes) -> bytes:
    """Return the job id, keccak256(owner (20) ‖ c (32)). An owner can therefore post a container only once."""
    if len(owner) != 20 or len(c) != 32:
        raise ValueError("the owner must have 20 bytes, and the commitment c 32 bytes")
    return keccak256(owner + c)


def _check_fee_bps(_: object, __: object, value: int) -> None:
    if value >> 16:
        raise ValueError("fee_bps does not fit a uint16")


@attrs.frozen(slots=True)
class FeeTerms:
    """Fees of the job registry. A job keeps the fees that applied when it was posted."""

    fee_bps: int = attrs.field(validator=_check_fee_bps)
    gas_fee: int = attrs.field(validator=uint128)


@attrs.frozen(slots=True)
class Quote:
    """Price of an order: `amount` is the sum of the other three."""

    cap: int
    fee: int
    gas_fee: int
    amount: int


@attrs.frozen(slots=True)
class Settlement:
    """Shares of the amount that was collected at the claim. The three shares add up to exactly this amount."""

    provider_amount: int
    treasury_amount: int
    refund: int


@attrs.frozen(slots=True)
class CostParts:
    """Parts of the client's payment for a settled job.

    The API's `cost` is `total`, but the `cost` in the registry's events is only the provider's part.
    """

    provider: int
    fee: int
    gas_fee: int

    @property
    def total(self) -> int:
        return self.provider + self.fee + self.gas_fee


def _price(rate_in: int, rate_out: int, units_in: int, units_out: int) -> int:
    return max(1, -(-(rate_in * units_in + rate_out * units_out) // _UNITS_PER_RATE))


def cap(rate_in: int, rate_out: int, units_in: int, units_out: int) -> int:
    """Return the maximum payment to the provider. Refuse a payment above a uint128 as `cap_overflow`."""
    price = _price(rate_in, rate_out, units_in, units_out)
    if price >> 128:
        raise Refused("the order's cap does not fit a uint128", code="cap_overflow")
    return price


def _fee(paid: int, terms: FeeTerms) -> int:
    return paid * terms.fee_bps // _BASIS_POINTS_PER_WHOLE


def amount(rate_in: int, rate_out: int, units_in: int, units_out: int, terms: FeeTerms) -> int:
    """Return the amount that the owner pays at the claim. Refuse a cap above a uint128 as `cap_overflow`."""
    max_payment = cap(rate_in, rate_out, units_in, units_out)
    return max_payment + _fee(max_payment, terms) + terms.gas_fee


def quote(rate_in: int, rate_out: int, units_in: int, units_out: int, terms: FeeTerms) -> Quote:
    """Return the price of an order. Refuse a cap above a uint128 as `cap_overflow`."""
    max_payment = cap(rate_in, rate_out, units_in, units_out)
    fee = _fee(max_payment, terms)
    return Quote(cap=max_payment, fee=fee, gas_fee=terms.gas_fee, amount=max_payment + fee + terms.gas_fee)


def cost(rate_in: int, rate_out: int, units_in: int, units_out: int, *, completion_tok: int) -> int:
    """Return the payment to the provider for `completion_tok` output units.

    Refuse more units than `units_out`, so the payment never exceeds the cap.
    """
    if completion_tok > units_out:
        raise Refused(f"completion_tok must be at most the units_out of the order, {units_out}", "completion_tok")
    return _price(rate_in, rate_out, units_in, completion_tok)


def divide_payment(
    rate_in: int, rate_out: int, units_in: int, units_out: int, terms: FeeTerms, *, completion_tok: int
) -> Settlement:
    """Divide the amount that was collected at the claim between provider, treasury and owner.

    The fee is computed on the cost, which is at most the cap, so the owner's share is never negative.
    """
    collected = quote(rate_in, rate_out, units_in, units_out, terms).amount
    provider = cost(rate_in, rate_out, units_in, units_out, completion_tok=completion_tok)
    treasury = _fee(provider, terms) + terms.gas_fee
    return Settlement(provider_amount=provider, treasury_amount=treasury, refund=collected - provider - treasury)


def cost_parts(provider: int, terms: FeeTerms) -> CostParts:
    """Return the parts of a client's cost when the provider is paid `provider`."""
    return CostParts(provider, _fee(provider, terms), terms.gas_fee)


def split_cost(total: int, terms: FeeTerms) -> CostParts | None:
    """Split a job's total cost at the given fees, or return None if no payment to a provider gives this total.

    >>> split_cost(2004, FeeTerms(fee_bps=250, gas_fee=2000))
    CostParts(provider=4, fee=0, gas_fee=2000)
    """
    provider = max(0, total - terms.gas_fee) * _BASIS_POINTS_PER_WHOLE // (_BASIS_POINTS_PER_WHOLE + terms.fee_bps)
    # The fee is rounded down, so the provider's part may be one unit above this quotient.
    for candidate in (provider, provider + 1):
        parts = cost_parts(candidate, terms)
        if parts.total == total:
            return parts
    return None
