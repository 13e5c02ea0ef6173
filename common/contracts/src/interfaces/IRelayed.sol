// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// What the three registries share: relayers, coalesced calls, one signing domain, two-step ownership.
interface IRelayed {
    event RelayerSet(address indexed relayer, bool allowed);
    /// `reason`: the call's revert data. The other calls of the same transaction stand.
    event CallRefused(uint256 indexed index, bytes reason);

    error SenderNotRelayer();
    error CallStarved(); // a call ran out of gas: the whole transaction reverts, so that it can be sent again with more

    /// Relayers only. Runs each call on this contract as the sender; a refused one is reported and harms no other.
    function relay(bytes[] calldata calls) external;

    function setRelayer(address relayer, bool allowed) external; // owner only
    function isRelayer(address account) external view returns (bool);
    function DOMAIN_SEPARATOR() external view returns (bytes32);
}
