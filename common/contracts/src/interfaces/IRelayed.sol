// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// What the three registries share: relayers, coalesced calls, one signing domain, two-step ownership.
interface IRelayed {
    event RelayerSet(address indexed relayer, bool allowed);
    /// `reason`: the call's revert data. The other calls of the same transaction stand.
    event CallRefused(uint256 indexed index, bytes reason);

    error SenderNotRelayer();
    error NestedRelay(); // a call of `relay` inside another
    error CallStarved(); // a call ran out of gas: the whole transaction reverts, so that it can be sent again with more

    /// Run each call on this contract as the sender. A refused call emits CallRefused and does not affect the others.
    /// Relayers only.
    function relay(bytes[] calldata calls) external;

    /// Allow or forbid a relayer. Admin only.
    function setRelayer(address relayer, bool allowed) external;
    /// True for an allowed relayer.
    function isRelayer(address account) external view returns (bool);
    /// EIP-712 domain separator of this contract on this chain.
    function DOMAIN_SEPARATOR() external view returns (bytes32);
}
