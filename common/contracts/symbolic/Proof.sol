// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// Cheat codes of halmos that the proofs use.
interface Vm {
    function assume(bool condition) external;
    function store(address account, bytes32 slot, bytes32 value) external;
    function prank(address sender) external;
    function warp(uint256 time) external;
}

interface Symbols {
    function createUint(uint256 bits, string calldata name) external returns (uint256);
    function createBool(string calldata name) external returns (bool);
    function createBytes(uint256 length, string calldata name) external returns (bytes memory);
}

/// Base of the proofs: cheat codes, and the accounts of the parties.
abstract contract Proof {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));
    Symbols internal constant svm = Symbols(0xF3993A62377BCd56AE39D773740A5390411E8BC9);

    address internal constant OWNER = address(0xA11CE);
    address internal constant OPERATOR = address(0x0B0B);
    address internal constant TREASURY = address(0x74EA5);
    address internal constant BYSTANDER = address(0xB157);
    uint256 internal constant NOW = 1_800_000_000;
}
