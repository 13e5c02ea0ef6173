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
    }

    event ProviderRegistered(uint32 indexed providerId, address indexed operator);
    event IdentitySet(uint32 indexed providerId, bytes32 boxKey, bytes evidence, uint64 issuedAt);
    event CapacityRequested(uint32 indexed providerId, uint32 n, uint64 issuedAt);
    event ProviderListed(uint32 indexed providerId, bool listed);
    event CeilingSet(uint32 indexed providerId, uint32 ceiling);
    event AllModelsAllowed(uint32 indexed providerId, bool allowed);
    event ModelAllowed(uint32 indexed providerId, uint32 indexed modelId, bool allowed);
    event ReputationSet(uint32 indexed providerId, uint16 reputation);
    event AllowlistSet(bytes32 indexed key, uint8 status, string entry);
    event JobRegistrySet(address indexed jobRegistry);

    error AlreadyRegistered();
    error UnknownProvider(); // the signer (or the id) is not registered
    error StaleOp(); // issuedAt not newer than the last accepted one, or more than an hour ahead
    error InvalidSignature();
    error EvidenceTooLong();
    error NotJobRegistry();
    error JobsActive(); // the job registry is not exchanged while one of its jobs is claimed: it could never end
    error InvalidStatus();
    error ZeroAddress();

    /// The sender becomes a provider, unlisted, with reputation 500, requested capacity 1 and ceiling 0. Ids count from 1.
    /// Also emits ReputationSet.
    function register() external returns (uint32 providerId);

    /// Sender: anyone with the operator's signature, or the operator itself with an empty `sig` (`issuedAt` counts then, too).
    function setIdentity(bytes32 boxKey, bytes calldata evidence, uint64 issuedAt, bytes calldata sig) external;
    function requestCapacity(uint32 n, uint64 issuedAt, bytes calldata sig) external;

    // owner (admin) only
    function setListed(uint32 providerId, bool listed) external;
    function setCeiling(uint32 providerId, uint32 ceiling) external;
    function setAllowAllModels(uint32 providerId, bool allowed) external;
    function setModelAllowed(uint32 providerId, uint32 modelId, bool allowed) external;
    function setAllowlist(bytes32 key, uint8 status, string calldata entry) external;
    function setJobRegistry(address jobRegistry) external; // only while no job is claimed

    // the job registry only; each moves activeJobs by one
    function jobClaimed(uint32 providerId) external;
    function jobSettled(uint32 providerId) external; // reputation +5, at most 1000
    function jobFailed(uint32 providerId) external; // reputation -25, at least 100
    function jobReclaimed(uint32 providerId) external; // reputation -100, at least 100

    function providerIdOf(address operator) external view returns (uint32); // 0: not registered
    function provider(uint32 providerId) external view returns (Provider memory);
    function operatorOf(uint32 providerId) external view returns (address);
    function providerCount() external view returns (uint32);
    function jobRegistry() external view returns (address);
    /// Whether it may claim jobs of this model: by its own entry, or because all models are allowed to it.
    function modelAllowed(uint32 providerId, uint32 modelId) external view returns (bool);
    /// max(1, reputation * min(requested, ceiling) / 1000); 0 for an unknown id
    function capacityOf(uint32 providerId) external view returns (uint32);
    function lastIdentityAt(uint32 providerId) external view returns (uint64);
    function lastCapacityAt(uint32 providerId) external view returns (uint64);
    function allowlistStatus(bytes32 key) external view returns (uint8); // 0 none, 1 allowed, 2 tombstoned
}
