// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Quotes} from "../src/Quotes.sol";
import {Check} from "./Check.sol";

contract QuotesTest is Check {
    function test_price_is_at_least_one_and_rounds_up() public pure {
        vm.assertEq(Quotes.price(0, 0, 0, 0), 1);
        vm.assertEq(Quotes.price(1, 0, 1, 0), 1);
        vm.assertEq(Quotes.price(1, 0, 1_000_000, 0), 1);
        vm.assertEq(Quotes.price(1, 1, 1_000_000, 1), 2);
        vm.assertEq(Quotes.price(3, 5, 1_000_000, 1_000_000), 8);
    }

    function test_price_at_the_extremes_does_not_overflow() public pure {
        uint256 product = uint256(type(uint128).max) * type(uint32).max;
        uint256 price = Quotes.price(type(uint128).max, type(uint128).max, type(uint32).max, type(uint32).max);
        vm.assertEq(price, (2 * product + 999_999) / 1e6);
    }

    function test_price_is_the_least_integer_not_below_the_exact_one(
        uint128 rateIn,
        uint128 rateOut,
        uint32 unitsIn,
        uint32 unitsOut
    ) public pure {
        uint256 exact = uint256(rateIn) * unitsIn + uint256(rateOut) * unitsOut;
        uint256 price = Quotes.price(rateIn, rateOut, unitsIn, unitsOut);
        vm.assertGe(price * 1e6, exact);
        if (price > 1) vm.assertTrue((price - 1) * 1e6 < exact);
    }

    /// Settles rely on this: fewer units never cost more, and the shares never exceed the collected amount.
    function test_cost_and_shares_never_exceed_the_amount(
        uint128 rateIn,
        uint128 rateOut,
        uint32 unitsIn,
        uint32 unitsOut,
        uint32 used,
        uint16 feeBps,
        uint128 gasFee
    ) public pure {
        used = uint32(bound(used, 0, unitsOut));
        feeBps = uint16(bound(feeBps, 0, 2000));
        uint256 cap = Quotes.price(rateIn, rateOut, unitsIn, unitsOut);
        uint256 cost = Quotes.price(rateIn, rateOut, unitsIn, used);
        vm.assertLe(cost, cap);
        vm.assertLe(cost + Quotes.fee(cost, feeBps) + gasFee, Quotes.total(cap, feeBps, gasFee));
    }

    function test_fee_rounds_down() public pure {
        vm.assertEq(Quotes.fee(399, 250), 9);
        vm.assertEq(Quotes.fee(400, 250), 10);
        vm.assertEq(Quotes.fee(1, 2000), 0);
        vm.assertEq(Quotes.total(400, 250, 7), 417);
    }
}
