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
    event ReputationSet(uint32 indexed providerId, uint16 reputation);
    event FailExcused(uint32 indexed providerId, uint16 grace); // a prompt fail that cost grace and no reputation
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
    error JobsActive(); // a claimed job could never end: of the job registry to be exchanged, of the provider that leaves
    error InvalidStatus();
    error ZeroAddress();

    /// The sender becomes a provider, unlisted, with reputation 500, requested capacity 1 and ceiling 0. Ids count from 1.
    /// Also emits ReputationSet.
    function register() external returns (uint32 providerId);

    /// Sender: anyone with the operator's signature, or the operator itself with an empty `sig` (`issuedAt` counts then, too).
    function setIdentity(bytes32 boxKey, bytes calldata evidence, uint64 issuedAt, bytes calldata sig) external;
    function requestCapacity(uint32 n, uint64 issuedAt, bytes calldata sig) external;

    /// The operator names who follows it, or takes that back with address(0). It acts for the provider until the new
    /// one accepts; from then on it is nobody, and the provider's claimed jobs are the new one's to end.
    function proposeOperator(address operator) external;
    function acceptOperator(uint32 providerId) external;
    /// Only with no job claimed. The id is never used again; the operator may register anew, as a new provider.
    function deregister() external;

    // owner (admin) only
    function setListed(uint32 providerId, bool listed) external;
    function setCeiling(uint32 providerId, uint32 ceiling) external;
    function setAllowAllModels(uint32 providerId, bool allowed) external;
    function setModelAllowed(uint32 providerId, uint32 modelId, bool allowed) external;
    function setAllowlist(bytes32 key, uint8 status, string calldata entry) external;
    function setJobRegistry(address jobRegistry) external; // only while no job is claimed
    function setPointPrice(uint96 pointPrice) external;

    // the job registry only; each moves activeJobs by one
    /// Nothing is done when `refusal` is not 0: then it is what `claimRefusal` answers.
    function jobClaimed(address operator, uint32 modelId, bool modelEnabled, uint32 designated)
        external
        returns (bytes4 refusal, uint32 providerId);
    /// Reputation and grace grow by what the treasury got, one point for each pointPrice, at most 5; by nothing when the
    /// operator is the job's owner.
    function jobSettled(uint32 providerId, address operator, address owner, uint256 treasuryShare) external;
    /// reputation -25, at least 100; nothing while `prompt` and the grace lasts
    function jobFailed(uint32 providerId, address operator, bool prompt) external;
    function jobReclaimed(uint32 providerId) external; // reputation -100, at least 100

    /// The selector of the first failing check: UnknownProvider, NotListed, ModelNotAllowed, NotDesignated, AtCapacity.
    function claimRefusal(address operator, uint32 modelId, bool modelEnabled, uint32 designated)
        external
        view
        returns (bytes4 refusal);

    function providerIdOf(address operator) external view returns (uint32); // 0: not registered
    function provider(uint32 providerId) external view returns (Provider memory);
    function operatorOf(uint32 providerId) external view returns (address);
    function providerCount() external view returns (uint32);
    function proposedOperator(uint32 providerId) external view returns (address);
    function jobRegistry() external view returns (address);
    function pointPrice() external view returns (uint96);
    /// Whether it may claim jobs of this model: by its own entry, or because all models are allowed to it.
    function modelAllowed(uint32 providerId, uint32 modelId) external view returns (bool);
    /// max(1, reputation * min(requested, ceiling) / 1000); 0 for an unknown id
    function capacityOf(uint32 providerId) external view returns (uint32);
    function lastIdentityAt(uint32 providerId) external view returns (uint64);
    function lastCapacityAt(uint32 providerId) external view returns (uint64);
    function allowlistStatus(bytes32 key) external view returns (uint8); // 0 none, 1 allowed, 2 tombstoned
}
