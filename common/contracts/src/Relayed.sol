// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Memory} from "@openzeppelin/contracts/utils/Memory.sol";
import {IRelayed} from "./interfaces/IRelayed.sol";
import {Signatures} from "./Signatures.sol";

/// Relayers, coalesced calls, a signing domain of version 2 and two-step ownership.
abstract contract Relayed is IRelayed, EIP712, Ownable2Step {
    /// A refused call that leaves less than 1/16 of the gas it found is taken for a starved one. A call that runs
    /// out of gas leaves 1/64 at each level above it, and no registry calls more than three levels deep; a
    /// mistake in the other direction only costs the relayer a transaction with more gas.
    uint256 private constant STARVED_BELOW = 16;

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
        bool nested = _relaying;
        _relaying = true;
        for (uint256 i = 0; i < calls.length; ++i) {
            // Each call's copy is dropped after it: memory that only grows is paid for by its square.
            Memory.Pointer free = Memory.getFreeMemoryPointer();
            uint256 gasBefore = gasleft();
            (bool done, bytes memory reason) = address(this).delegatecall(calls[i]);
            if (!done) {
                if (gasleft() < gasBefore / STARVED_BELOW || _saysStarved(reason)) revert CallStarved();
                emit CallRefused(i, reason);
            }
            Memory.unsafeSetFreeMemoryPointer(free);
        }
        _relaying = nested;
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

    function _saysStarved(bytes memory reason) private pure returns (bool) {
        return reason.length == 4 && bytes4(reason) == CallStarved.selector;
    }
}
