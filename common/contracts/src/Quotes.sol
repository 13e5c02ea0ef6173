// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";

/// What a job costs. Rates are per million units; every division that favours one side says which.
library Quotes {
    uint256 internal constant UNITS_PER_RATE = 1e6;
    uint256 internal constant BPS = 10_000;

    /// At least 1, rounded up (for the provider). Two products of 160 bits: the sum cannot overflow.
    function price(uint128 rateIn, uint128 rateOut, uint32 unitsIn, uint32 unitsOut) internal pure returns (uint256) {
        uint256 perMillion = uint256(rateIn) * unitsIn + uint256(rateOut) * unitsOut;
        return Math.max(1, Math.ceilDiv(perMillion, UNITS_PER_RATE));
    }

    /// Rounded down (for the payer).
    function fee(uint256 amount, uint16 feeBps) internal pure returns (uint256) {
        return amount * feeBps / BPS;
    }

    /// What the payer authorises for a job of this cap.
    function total(uint256 cap, uint16 feeBps, uint128 gasFee) internal pure returns (uint256) {
        return cap + fee(cap, feeBps) + gasFee;
    }
}
