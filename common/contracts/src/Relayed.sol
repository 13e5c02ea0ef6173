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
            uint256 gasBefore = gasleft();
            if (_run(calls[i])) continue;
            uint256 gasAfter = gasleft();
            bytes memory reason = _reason();
            if (gasAfter < gasBefore / STARVED_BELOW || _saysStarved(reason)) revert CallStarved();
            emit CallRefused(i, reason);
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

    /// Who authorised an op: the sender itself when `signature` is empty, else whoever signed; address(0) for nobody.
    function _authoriser(bytes32 structHash, bytes calldata signature) internal view returns (address) {
        if (signature.length == 0) return msg.sender;
        return Signatures.signerOf(_hashTypedDataV4(structHash), signature);
    }

    /// Each call's copy is forgotten after it: memory that only grows is paid for by its square.
    function _run(bytes calldata data) private returns (bool done) {
        assembly ("memory-safe") {
            let copy := mload(0x40)
            calldatacopy(copy, data.offset, data.length)
            done := delegatecall(gas(), address(), copy, data.length, 0, 0)
        }
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
