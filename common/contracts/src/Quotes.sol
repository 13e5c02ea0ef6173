// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// What a job costs. Rates are per million units; every division that favours one side says which.
///
/// Unchecked, because nothing can overflow: a price stays below 2^142 (two products of 160 bits in a million parts), and
/// what is made of it far below a word. Symbolic tests hold it to checked arithmetic.
library Quotes {
    uint256 internal constant UNITS_PER_RATE = 1e6;
    uint256 internal constant BPS = 10_000;

    /// At least 1, rounded up (for the provider).
    function price(uint128 rateIn, uint128 rateOut, uint32 unitsIn, uint32 unitsOut) internal pure returns (uint256) {
        unchecked {
            uint256 perMillion = uint256(rateIn) * unitsIn + uint256(rateOut) * unitsOut;
            return perMillion == 0 ? 1 : (perMillion + UNITS_PER_RATE - 1) / UNITS_PER_RATE;
        }
    }

    /// Rounded down (for the payer). `amount` is a price.
    function fee(uint256 amount, uint16 feeBps) internal pure returns (uint256) {
        unchecked {
            return amount * feeBps / BPS;
        }
    }

    /// What the payer authorises for a job of this cap.
    function total(uint256 cap, uint16 feeBps, uint128 gasFee) internal pure returns (uint256) {
        unchecked {
            return cap + fee(cap, feeBps) + gasFee;
        }
    }
}
