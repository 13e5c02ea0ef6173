// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// The cheat codes that these tests use.
interface Vm {
    struct Log {
        bytes32[] topics;
        bytes data;
        address emitter;
    }

    struct Gas {
        uint64 gasLimit;
        uint64 gasTotalUsed;
        uint64 gasMemoryUsed;
        int64 gasRefunded;
        uint64 gasRemaining;
    }

    function warp(uint256 time) external;
    function lastCallGas() external view returns (Gas memory);
    function snapshotGasLastCall(string calldata group, string calldata name) external returns (uint256);
    function snapshotValue(string calldata group, string calldata name, uint256 value) external;
    function getBlockTimestamp() external view returns (uint256);
    function chainId(uint256 id) external;
    function setEvmVersion(string calldata evm) external;
    function etch(address account, bytes calldata code) external;
    function prank(address sender) external;
    function startPrank(address sender) external;
    function stopPrank() external;
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function addr(uint256 key) external pure returns (address);
    function expectRevert(bytes4 refusal) external;
    function expectRevert(bytes calldata data) external;
    function expectRevert() external;
    function expectEmit(address emitter) external;
    function recordLogs() external;
    function getRecordedLogs() external returns (Log[] memory);
    function snapshotState() external returns (uint256);
    function revertToState(uint256 id) external returns (bool);
    function readFile(string calldata path) external view returns (string memory);
    function parseJsonKeys(string calldata json, string calldata key) external pure returns (string[] memory);
    function keyExistsJson(string calldata json, string calldata key) external view returns (bool);
    function parseJsonString(string calldata json, string calldata key) external pure returns (string memory);
    function parseJsonUint(string calldata json, string calldata key) external pure returns (uint256);
    function parseJsonBytes32(string calldata json, string calldata key) external pure returns (bytes32);
    function parseJsonBytes(string calldata json, string calldata key) external pure returns (bytes memory);
    function parseJsonAddress(string calldata json, string calldata key) external pure returns (address);
    function parseJsonBool(string calldata json, string calldata key) external pure returns (bool);
    function toString(uint256 value) external pure returns (string memory);
    function assertEq(uint256 left, uint256 right) external pure;
    function assertEq(uint256 left, uint256 right, string calldata what) external pure;
    function assertEq(address left, address right) external pure;
    function assertEq(bytes32 left, bytes32 right) external pure;
    function assertEq(bytes32 left, bytes32 right, string calldata what) external pure;
    function assertEq(bytes calldata left, bytes calldata right) external pure;
    function assertEq(bool left, bool right) external pure;
    function assertTrue(bool condition) external pure;
    function assertTrue(bool condition, string calldata what) external pure;
    function assertLe(uint256 left, uint256 right) external pure;
    function assertGe(uint256 left, uint256 right) external pure;
}

/// Base of every test contract.
abstract contract Check {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    /// forge calls this function.
    bool public constant IS_TEST = true;

    /// The current block time. The optimiser treats `block.timestamp` as constant in a call, but `warp` changes it.
    function time() internal view returns (uint256) {
        return vm.getBlockTimestamp();
    }

    function bound(uint256 value, uint256 least, uint256 most) internal pure returns (uint256) {
        return most - least == type(uint256).max ? value : least + value % (most - least + 1);
    }
}
