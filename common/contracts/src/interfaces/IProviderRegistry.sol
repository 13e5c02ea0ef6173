// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// Who provides: identity, listing, capacity, reputation; and the escrow allowlist.
interface IProviderRegistry {
    struct Provider {
        address operator;
        bytes32 boxKey; // 0 until set
        bool listed;
        bool allowAllModels;
        uint16 reputation; // 100..1000, starts at 500
        uint32 requested; // capacity asked for
        uint32 ceiling; // capacity the admin allows at most
        uint32 activeJobs;
        uint16 grace; // what prompt fails may still use up before they cost reputation
    }

    event ProviderRegistered(uint32 indexed providerId, address indexed operator);
    event OperatorProposed(uint32 indexed providerId, address indexed operator); // address(0): taken back
    event OperatorChanged(uint32 indexed providerId, address indexed operator);
    event ProviderDeregistered(uint32 indexed providerId);
    event IdentitySet(uint32 indexed providerId, bytes32 boxKey, bytes evidence, uint64 issuedAt);
    event CapacityRequested(uint32 indexed providerId, uint32 n, uint64 issuedAt);
    event ProviderListed(uint32 indexed providerId, bool listed);
    event CeilingSet(uint32 indexed providerId, uint32 ceiling);
    event AllModelsAllowed(uint32 indexed providerId, bool allowed);
    event ModelAllowed(uint32 indexed providerId, uint32 indexed modelId, bool allowed);
    event StandingSet(uint32 indexed providerId, uint16 reputation, uint16 grace); // either changed by a point or more
    event PointPriceSet(uint96 pointPrice);
    event AllowlistSet(bytes32 indexed key, uint8 status, string entry);
    event JobRegistrySet(address indexed jobRegistry);

    error AlreadyRegistered(); // the account operates a provider
    error UnknownProvider(); // the signer (or the id) is not registered
    error StaleOp(); // issuedAt not newer than the last accepted one, or more than an hour ahead
    error InvalidSignature();
    error EvidenceTooLong();
    error NotProposed(); // the sender is not the operator that was proposed
    error NotJobRegistry();
    error JobsActive(); // claimed jobs could not end any more
    error InvalidJobRegistry(); // not a job registry that names this provider registry
    error InvalidStatus();
    error ZeroAddress();

    /// Make the sender a provider: unlisted, reputation 500, grace 40, requested capacity 1, ceiling 0. Ids count from 1.
    /// @dev Ops that were signed up to this block's time do not count for the new provider. Also emits StandingSet.
    function register() external returns (uint32 providerId);

    /// Publish the key that payloads are sealed to, with evidence.
    /// @dev Sender: anyone with the operator's signature, or the operator itself with an empty `sig`. `issuedAt` must be
    /// newer than the last one and at most an hour ahead, in both cases.
    function setIdentity(bytes32 boxKey, bytes calldata evidence, uint64 issuedAt, bytes calldata sig) external;
    /// Request a capacity of `n` jobs at a time. Sender and `issuedAt` as in setIdentity.
    function requestCapacity(uint32 n, uint64 issuedAt, bytes calldata sig) external;

    /// Name the next operator, or take the proposal back with address(0). The sender stays operator until the next one
    /// accepts.
    function proposeOperator(address operator) external;
    /// Become the operator of a provider. Its claimed jobs, reputation and grace move along.
    function acceptOperator(uint32 providerId) external;
    /// Leave, with no job claimed. The id is never used again. The operator may register again as a new provider.
    function deregister() external;

    /// List or delist a provider. Admin only.
    function setListed(uint32 providerId, bool listed) external;
    /// Set the most jobs at a time that a provider can be granted. Admin only.
    function setCeiling(uint32 providerId, uint32 ceiling) external;
    /// Allow a provider every model, or only those set with setModelAllowed. Admin only.
    function setAllowAllModels(uint32 providerId, bool allowed) external;
    /// Allow or forbid a provider one model. Admin only.
    function setModelAllowed(uint32 providerId, uint32 modelId, bool allowed) external;
    /// Set the status of an escrow key: 0 none, 1 allowed, 2 tombstoned. Admin only.
    function setAllowlist(bytes32 key, uint8 status, string calldata entry) external;
    /// Replace the job registry. Admin only.
    /// @dev Refused while the current one holds a payment, and unless the new one names this provider registry.
    function setJobRegistry(address jobRegistry) external;
    /// Set what the treasury must receive for a provider to gain a point. Admin only.
    function setPointPrice(uint96 pointPrice) external;

    /// Count a claim. Job registry only.
    /// @return refusal what `claimRefusal` returns; nothing is changed unless it is 0
    /// @return providerId the claimer
    function jobClaimed(address operator, uint32 modelId, bool modelEnabled, uint32 designated)
        external
        returns (bytes4 refusal, uint32 providerId);
    /// Count a settled job: one point of reputation and grace for each pointPrice that the treasury received, at most 5.
    /// A job of the operator itself earns none. Job registry only.
    function jobSettled(uint32 providerId, address operator, address owner, uint256 treasuryShare) external;
    /// Count a failed job. `prompt` with 20 points of grace: grace -20. `late`: as a reclaim. Otherwise reputation -25,
    /// at least 100; a provider that is at 100 already is delisted. Job registry only.
    function jobFailed(uint32 providerId, address operator, bool prompt, bool late) external;
    /// Count a reclaimed job: reputation -100, at least 100; a provider that is at 100 already is delisted. Job registry
    /// only.
    function jobReclaimed(uint32 providerId) external;

    /// The selector of the first failing check: UnknownProvider, NotListed, ModelNotAllowed, NotDesignated, AtCapacity;
    /// or 0.
    function claimRefusal(address operator, uint32 modelId, bool modelEnabled, uint32 designated)
        external
        view
        returns (bytes4 refusal);

    /// Id of the provider that this account operates, or 0.
    function providerIdOf(address operator) external view returns (uint32);
    /// Everything about a provider; zeros for an unknown id.
    function provider(uint32 providerId) external view returns (Provider memory);
    /// Operator of a provider, or address(0).
    function operatorOf(uint32 providerId) external view returns (address);
    /// Highest id given so far.
    function providerCount() external view returns (uint32);
    /// Account that may accept the provider next, or address(0).
    function proposedOperator(uint32 providerId) external view returns (address);
    /// The job registry that counts claims and endings here.
    function jobRegistry() external view returns (address);
    /// What the treasury must receive for a provider to gain a point, in the token's smallest unit.
    function pointPrice() external view returns (uint96);
    /// True when the provider may claim jobs of this model, as far as its own entry says.
    function modelAllowed(uint32 providerId, uint32 modelId) external view returns (bool);
    /// max(1, reputation * min(requested, ceiling) / 1000); 0 for an unknown id.
    function capacityOf(uint32 providerId) external view returns (uint32);
    /// `issuedAt` of the last identity, or the time of registration.
    function lastIdentityAt(uint32 providerId) external view returns (uint64);
    /// `issuedAt` of the last capacity request, or the time of registration.
    function lastCapacityAt(uint32 providerId) external view returns (uint64);
    /// Status of an escrow key: 0 none, 1 allowed, 2 tombstoned.
    function allowlistStatus(bytes32 key) external view returns (uint8);
}
