// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobRegistry} from "./interfaces/IJobRegistry.sol";

/// All that is stored of a job, in one word:
///
///     255  254 .................. 64  63 .... 32  31 .... 0
///     live │ hash of its terms       │ provider  │ claimedAt      open (both 0) or claimed
///     0    │ why it ended            │ provider  │ claimedAt      ended
///
/// The terms themselves are in the event of its post, and are given again by whoever acts on the job: their hash is
/// held against the one kept here. 191 bits of it: two orders of one job that share them cost some 2^95 hashes to find.
/// `claimedAt` lasts until the year 2106.
type JobWord is uint256;

using JobWords for JobWord global;

library JobWords {
    uint256 private constant LIVE = 1 << 255;
    uint256 private constant HASH = (LIVE - 1) >> 64 << 64;

    function open(bytes32 termsHash) internal pure returns (JobWord) {
        return JobWord.wrap(LIVE | (uint256(termsHash) & HASH));
    }

    function claimed(JobWord self, uint32 providerId, uint256 time) internal pure returns (JobWord) {
        return JobWord.wrap(JobWord.unwrap(self) | uint256(providerId) << 32 | uint32(time));
    }

    function ended(JobWord self, IJobRegistry.EndedBecause reason) internal pure returns (JobWord) {
        return JobWord.wrap(uint256(reason) << 64 | uint64(JobWord.unwrap(self)));
    }

    /// The word of an id that its owner ended before any post.
    function discarded() internal pure returns (JobWord) {
        return JobWord.wrap(uint256(IJobRegistry.EndedBecause.CancelledByOwner) << 64);
    }

    function exists(JobWord self) internal pure returns (bool) {
        return JobWord.unwrap(self) != 0;
    }

    function isOpen(JobWord self) internal pure returns (bool) {
        return self.isLive() && uint64(JobWord.unwrap(self)) == 0;
    }

    function isClaimed(JobWord self) internal pure returns (bool) {
        return self.isLive() && uint64(JobWord.unwrap(self)) != 0;
    }

    function isLive(JobWord self) internal pure returns (bool) {
        return JobWord.unwrap(self) & LIVE != 0;
    }

    /// Whether it was posted on these terms; asked of a live job only, an ended one has forgotten them.
    function isOn(JobWord self, bytes32 termsHash) internal pure returns (bool) {
        return JobWord.unwrap(self) & HASH == uint256(termsHash) & HASH;
    }

    function because(JobWord self) internal pure returns (IJobRegistry.EndedBecause) {
        if (self.isLive()) return IJobRegistry.EndedBecause.NotEnded;
        return IJobRegistry.EndedBecause(JobWord.unwrap(self) >> 64);
    }

    function provider(JobWord self) internal pure returns (uint32) {
        return uint32(JobWord.unwrap(self) >> 32);
    }

    function claimedAt(JobWord self) internal pure returns (uint32) {
        return uint32(JobWord.unwrap(self));
    }
}
