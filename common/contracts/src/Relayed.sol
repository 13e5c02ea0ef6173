// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {IRelayed} from "./interfaces/IRelayed.sol";
import {Signatures} from "./Signatures.sol";

/// Relayers, coalesced calls, a signing domain of version 2 and two-step ownership.
abstract contract Relayed is IRelayed, EIP712, Ownable2Step {
    /// A refused call that leaves less than 1/16 of the gas it found is taken for a starved one. A call that runs
    /// out of gas leaves 1/64 at each level above it, and no registry calls more than three levels deep; a
    /// mistake in the other direction only costs the relayer a transaction with more gas.
    uint256 private constant STARVED_BELOW = 16;
    /// As much of a refused call's revert data is reported: every error of ours fits, and nobody else's can make the
    /// report dear.
    uint256 private constant LONGEST_REASON = 256;

    mapping(address => bool) public isRelayer;
    bool private transient _relaying;
    uint256 private transient _attachedLength;

    constructor(address owner, string memory domainName) EIP712(domainName, "2") Ownable(owner) {}

    function setRelayer(address relayer, bool allowed) external onlyOwner {
        isRelayer[relayer] = allowed;
        emit RelayerSet(relayer, allowed);
    }

    // The calls run this contract's own code, which does its own guarding; the mark must outlast them.
    // slither-disable-next-line reentrancy-no-eth
    function relay(bytes[] calldata calls) external {
        if (!isRelayer[msg.sender]) revert SenderNotRelayer();
        if (_relaying) revert NestedRelay();
        _relaying = true;
        for (uint256 i = 0; i < calls.length; ++i) {
            bytes calldata call = calls[i];
            bytes4 follower = _followerOf(bytes4(call));
            bytes calldata next = follower != 0 && i + 1 < calls.length ? calls[i + 1] : call[:0];
            if (follower == 0 || bytes4(next) != follower) {
                _runAlone(i, call);
                continue;
            }
            (bool done, bytes memory reason) = _run(call, next);
            if (!done) {
                _runAlone(i, call);
                emit CallRefused(i + 1, reason);
            }
            ++i;
        }
        _relaying = false;
    }

    function DOMAIN_SEPARATOR() external view returns (bytes32) {
        return _domainSeparatorV4();
    }

    /// True while one of `relay`'s calls runs.
    function _insideRelay() internal view returns (bool) {
        return _relaying;
    }

    /// Selector of the call that `relay` attaches to a call of this selector directly before it, or 0. If the two are
    /// refused, both are undone; the first then runs again by itself, and the second counts as refused.
    function _followerOf(bytes4) internal pure virtual returns (bytes4) {
        return 0;
    }

    /// The call that `relay` attached to the running one. Reading clears it, so no call made from there finds it again.
    function _takeAttached() internal returns (bytes calldata attached) {
        uint256 length = _attachedLength;
        if (length != 0) _attachedLength = 0;
        return msg.data[msg.data.length - length:];
    }

    /// Who authorised an op: the sender itself when `signature` is empty, else whoever signed; address(0) for nobody.
    function _authoriser(bytes32 structHash, bytes calldata signature) internal view returns (address) {
        if (signature.length == 0) return msg.sender;
        return Signatures.signerOf(_hashTypedDataV4(structHash), signature);
    }

    function _runAlone(uint256 index, bytes calldata call) private {
        (bool done, bytes memory reason) = _run(call, call[:0]);
        if (!done) emit CallRefused(index, reason);
    }

    /// Run one call, with the other attached. Reverts if it ran out of gas.
    function _run(bytes calldata call, bytes calldata attached) private returns (bool done, bytes memory reason) {
        uint256 gasBefore = gasleft();
        if (attached.length != 0) _attachedLength = attached.length;
        // The copy is forgotten afterwards: memory that only grows is paid for by its square.
        assembly ("memory-safe") {
            let copy := mload(0x40)
            calldatacopy(copy, call.offset, call.length)
            calldatacopy(add(copy, call.length), attached.offset, attached.length)
            done := delegatecall(gas(), address(), copy, add(call.length, attached.length), 0, 0)
        }
        if (done) return (true, reason);
        uint256 gasAfter = gasleft();
        reason = _reason();
        if (gasAfter < gasBefore / STARVED_BELOW || _saysStarved(reason)) revert CallStarved();
        if (attached.length != 0) _attachedLength = 0; // the revert undid that the call took it
    }

    /// What the last call reverted with.
    function _reason() private pure returns (bytes memory reason) {
        assembly ("memory-safe") {
            let length := returndatasize()
            if gt(length, LONGEST_REASON) { length := LONGEST_REASON }
            reason := mload(0x40)
            mstore(0x40, add(reason, and(add(length, 63), not(31))))
            mstore(reason, length)
            returndatacopy(add(reason, 32), 0, length)
        }
    }

    function _saysStarved(bytes memory reason) private pure returns (bool) {
        return reason.length == 4 && bytes4(reason) == CallStarved.selector;
    }
}
