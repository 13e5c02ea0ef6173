"""Proofs about prices over the integers: Quotes.sol never overflows, no refund is negative, and no gain exceeds its
bound.

Run in the environment of halmos, which provides z3. halmos works on words of 256 bits and does
not finish on products and quotients of unknowns. Over the integers, each lemma takes seconds. A quotient is a variable
with the constraints of the EVM's DIV.
"""

import sys

import z3

WORD = 2**256
MILLION, BPS = 10**6, 10_000
POINT, FULL_GAIN = 2**16, 5  # as in ProviderRegistry
HIGHEST_RATE, MOST_UNITS, HIGHEST_BPS, HIGHEST_GAS_FEE = 2**128 - 1, 2**32 - 1, 2**16 - 1, 2**128 - 1


def natural(name: str, highest: int) -> tuple[z3.ArithRef, z3.BoolRef]:
    number = z3.Int(name)
    return number, z3.And(number >= 0, number <= highest)


def is_quotient(quotient: z3.ArithRef, number: z3.ArithRef, divisor: int) -> z3.BoolRef:
    return z3.And(quotient * divisor <= number, number < quotient * divisor + divisor)


def proved(claim: str, assumptions: list[z3.BoolRef], conclusion: z3.BoolRef) -> bool:
    solver = z3.Solver()
    solver.set("timeout", 60_000)
    solver.add(*assumptions, z3.Not(conclusion))
    answer = solver.check()
    print(f"{'proved' if answer == z3.unsat else answer}: {claim}")
    return bool(answer == z3.unsat)


def lemmas() -> list[bool]:
    rate, rate_fits = natural("rate", HIGHEST_RATE)
    fewer, _ = natural("fewer", MOST_UNITS)
    units, units_fit = natural("units", MOST_UNITS)
    fewer_units = z3.And(fewer >= 0, fewer <= units)
    highest_sum = 2 * HIGHEST_RATE * MOST_UNITS
    less, more, cost, cap, fee_of_cost, fee_of_cap, bps = z3.Ints("less more cost cap fee_of_cost fee_of_cap bps")
    sums = [less >= 0, less <= more, more <= highest_sum]
    # Quotes.price: 1 for a sum of 0, else rounded up.
    price_of = [
        z3.If(number == 0, price == 1, is_quotient(price, number + MILLION - 1, MILLION))
        for number, price in ((less, cost), (more, cap))
    ]
    highest_price = -(-highest_sum // MILLION)
    bps_fit = z3.And(bps >= 0, bps <= HIGHEST_BPS)
    prices = [cost >= 1, cost <= cap, cap <= highest_price, bps_fit]
    highest_fee = highest_price * HIGHEST_BPS // BPS
    share, point_price, extra, product = z3.Ints("share point_price extra product")
    gas_fee, gas_fee_fits = natural("gas_fee", HIGHEST_GAS_FEE)
    fees = [fee_of_cost >= 0, fee_of_cost <= fee_of_cap, fee_of_cap <= highest_fee, gas_fee_fits]
    return [
        proved("fewer units at a rate cost no more", [rate_fits, units_fit, fewer_units], rate * fewer <= rate * units),
        proved(
            "a product of a rate and units is at most that of the highest",
            [rate_fits, units_fit],
            z3.And(rate * units >= 0, rate * units <= HIGHEST_RATE * MOST_UNITS),
        ),
        proved("a sum of two such products, rounded up, fits a word", sums, more + MILLION - 1 < WORD),
        proved(
            "a smaller sum has no higher price, and a price is at least 1",
            [*sums, *price_of],
            z3.And(cost >= 1, cost <= cap),
        ),
        proved("a price is at most the highest sum's", [*sums, *price_of], cap <= highest_price),
        proved("a price times basis points fits a word", prices, z3.And(cap * bps >= 0, cap * bps < WORD)),
        proved("the fee of a smaller price is no higher", [*prices], cost * bps <= cap * bps),
        proved(
            "a quotient keeps that order, and the highest fee bounds it",
            [
                *(less >= 0, less <= more, more <= highest_price * HIGHEST_BPS),
                *(is_quotient(fee_of_cost, less, BPS), is_quotient(fee_of_cap, more, BPS)),
            ],
            z3.And(fee_of_cost >= 0, fee_of_cost <= fee_of_cap, fee_of_cap <= highest_fee),
        ),
        proved("a product of naturals is one", [extra >= 0, point_price >= 0], extra * point_price >= 0),
        # A gain of FULL_GAIN * POINT + extra, as a quotient by the price of a point, is impossible. `product` is extra
        # * point_price.
        proved(
            "a gain that is not the full one is less than it",
            [point_price >= 1, share >= 0, share < point_price * FULL_GAIN, product >= 0],
            z3.Not(FULL_GAIN * POINT * point_price + product <= share * POINT),
        ),
        proved("an amount fits a word", [*prices, *fees], cap + fee_of_cap + gas_fee < WORD),
        proved(
            "a settle takes no more than the claim brought: the refund is not negative",
            [*prices, *fees],
            (cap + fee_of_cap + gas_fee) - cost - (fee_of_cost + gas_fee) >= 0,
        ),
    ]


if __name__ == "__main__":
    sys.exit(0 if all(lemmas()) else 1)
