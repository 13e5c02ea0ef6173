// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";

/// The one reading of signatures that all three registries share.
library Signatures {
    /// The account behind a signature of exactly 65 bytes with v 27 or 28 and s in the lower half of the group
    /// order; address(0) for everything else, so that no caller has to know the ways a signature can be wrong.
    function signerOf(bytes32 digest, bytes calldata signature) internal pure returns (address signer) {
        // ecrecover itself yields nobody for any other v; why a signature is bad changes nothing here.
        // slither-disable-next-line unused-return
        (signer,,) = ECDSA.tryRecoverCalldata(digest, signature);
    }

    /// False for address(0), too: nobody signs for it.
    function isBy(address account, bytes32 digest, bytes calldata signature) internal pure returns (bool) {
        address signer = signerOf(digest, signature);
        return signer != address(0) && signer == account;
    }
}
