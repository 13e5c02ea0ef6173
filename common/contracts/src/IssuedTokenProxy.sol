// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// The address of an IssuedToken: everything but the admin's upgrades goes to the implementation. Like the proxies of
/// the time when the large tokens were made, it looks on each call whether it is the admin's, and refuses it.
contract IssuedTokenProxy {
    bytes32 private constant ADMIN_SLOT = keccak256("svc.issued-token.admin");
    bytes32 private constant IMPLEMENTATION_SLOT = keccak256("svc.issued-token.implementation");

    event Upgraded(address implementation);

    constructor(address firstImplementation, address proxyAdmin) {
        _set(ADMIN_SLOT, uint160(proxyAdmin));
        _set(IMPLEMENTATION_SLOT, uint160(firstImplementation));
    }

    function upgradeTo(address newImplementation) external {
        require(msg.sender == address(uint160(_get(ADMIN_SLOT))), "only the admin upgrades");
        _set(IMPLEMENTATION_SLOT, uint160(newImplementation));
        emit Upgraded(newImplementation);
    }

    fallback() external {
        require(msg.sender != address(uint160(_get(ADMIN_SLOT))), "the admin cannot use the token");
        _delegate();
    }

    function _delegate() private {
        uint256 implementation = _get(IMPLEMENTATION_SLOT);
        assembly {
            calldatacopy(0, 0, calldatasize())
            let done := delegatecall(gas(), implementation, 0, calldatasize(), 0, 0)
            returndatacopy(0, 0, returndatasize())
            if iszero(done) { revert(0, returndatasize()) }
            return(0, returndatasize())
        }
    }

    function _get(bytes32 slot) private view returns (uint256 value) {
        assembly ("memory-safe") {
            value := sload(slot)
        }
    }

    function _set(bytes32 slot, uint256 value) private {
        assembly ("memory-safe") {
            sstore(slot, value)
        }
    }
}
