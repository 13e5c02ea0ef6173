"""Job ids, and prices computed with exact fractions."""

import math
from fractions import Fraction

from eth_utils import keccak

from tests.vectors.signing.fixed import at, hexed, strings
from tests.vectors.vector_file import Case


def job_ids() -> list[Case]:
    pairs = [("typical", at("owner")[:20], at("c")), ("zeros", bytes(20), bytes(32))]
    pairs += [
        ("all ones", b"\xff" * 20, b"\xff" * 32),
        ("leading zeros", b"\0" * 19 + b"\1", b"\0" * 31 + b"\2"),
    ]
    return [
        {"name": name, "owner": hexed(owner), "c": hexed(c), "job_id": hexed(keccak(owner + c))}
        for name, owner, c in pairs
    ]


def quotes() -> list[Case]:
    u32, u128 = 2**32 - 1, 2**128 - 1
    greatest_rate = u128 * 10**6 // u32  # the largest rate that fits with the maximum of units
    orders = [
        ("typical", 150_000, 600_000, 1_200, 800, 250, 40_000),
        ("free order costs one unit", 0, 0, 0, 0, 250, 0),
        ("less than one unit is rounded up", 1, 0, 1, 0, 10_000, 5),
        ("exactly one unit", 10**6, 0, 1, 0, 9_999, 5),
        ("just above one unit", 10**6, 1, 1, 1, 9_999, 5),
        ("the two sides are rounded together", 500_000, 500_000, 1, 1, 300, 0),
        ("fee rounded down to nothing", 10**6, 0, 9_999, 0, 1, 0),
        ("fee of exactly one unit", 10**6, 0, 10_000, 0, 1, 0),
        ("no charges", 123_456_789, 987_654_321, u32, u32, 0, 0),
        ("most units", 1, 1, u32, u32, 250, u128),
        ("greatest rate with the most units", greatest_rate, 0, u32, 0, 250, u128),
        ("greatest cap", u128, 0, 10**6, 0, 10_000, u128),
        ("greatest cap out of two sides", u128 // 2, u128 // 2 + 1, 10**6, 10**6, 10_000, u128),
        ("output only", 0, 777_777, 0, 999, 100, 10),
    ]
    made: list[Case] = []
    for name, rate_in, rate_out, units_in, units_out, fee_bps, gas_fee in orders:
        terms = strings(rate_in=rate_in, rate_out=rate_out, units_in=units_in, units_out=units_out)
        terms |= strings(fee_bps=fee_bps, gas_fee=gas_fee)
        cap = price(rate_in, rate_out, units_in, units_out)
        fee = math.floor(Fraction(cap * fee_bps, 10_000))
        amount = cap + fee + gas_fee
        for completion_tok in sorted({0, units_out // 2, units_out}):
            cost = price(rate_in, rate_out, units_in, completion_tok)
            treasury = math.floor(Fraction(cost * fee_bps, 10_000)) + gas_fee
            made.append(
                {"name": f"{name}, {completion_tok} units of output"}
                | terms
                | strings(cap=cap, fee=fee, amount=amount, completion_tok=completion_tok)
                | strings(provider=cost, treasury=treasury, owner=amount - cost - treasury)
            )
    refused = [
        ("one above the greatest cap", u128, 1, 10**6, 1, "cap_overflow"),
        ("greatest rate plus one with the most units", greatest_rate + 1, 0, u32, 0, "cap_overflow"),
        ("everything at its greatest", u128, u128, u32, u32, "cap_overflow"),
        ("more output than was paid for", 1, 1, 10, 10, "too_many_units"),
    ]
    for name, rate_in, rate_out, units_in, units_out, reason in refused:
        terms = strings(rate_in=rate_in, rate_out=rate_out, units_in=units_in, units_out=units_out)
        terms |= strings(fee_bps=250, gas_fee=40_000)
        completion_tok = units_out + (reason == "too_many_units")
        made.append({"name": name} | terms | strings(completion_tok=completion_tok) | {"refused": reason})
    return made


def price(rate_in: int, rate_out: int, units_in: int, units_out: int) -> int:
    return max(1, math.ceil(Fraction(rate_in * units_in + rate_out * units_out, 10**6)))
