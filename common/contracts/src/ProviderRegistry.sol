// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {IProviderRegistry} from "./interfaces/IProviderRegistry.sol";
import {Relayed} from "./Relayed.sol";

/// Providers register themselves; an admin lists them and bounds their capacity; the job registry moves reputation.
contract ProviderRegistry is IProviderRegistry, Relayed {
    bytes32 private constant SET_IDENTITY_TYPEHASH =
        keccak256("SetIdentity(bytes32 boxKey,bytes evidence,uint64 issuedAt)");
    bytes32 private constant REQUEST_CAPACITY_TYPEHASH = keccak256("RequestCapacity(uint32 n,uint64 issuedAt)");
    uint256 private constant LONGEST_EVIDENCE = 32_768;
    uint256 private constant MOST_AHEAD = 1 hours;
    uint8 private constant HIGHEST_STATUS = 2;

    uint16 private constant FULL_REPUTATION = 1000;
    uint16 private constant FIRST_REPUTATION = 500;
    uint16 private constant LEAST_REPUTATION = 100;
    uint16 private constant GAIN_BY_SETTLING = 5;
    uint16 private constant LOSS_BY_FAILING = 25;
    uint16 private constant LOSS_BY_RECLAIM = 100;

    /// What a claim reads and an exit writes stands together in the second slot.
    struct Record {
        address operator;
        bool listed;
        bool allowAllModels;
        // next slot
        uint16 reputation;
        uint32 requested;
        uint32 ceiling;
        uint32 activeJobs;
        uint64 lastIdentityAt;
        uint64 lastCapacityAt;
        // next slot
        bytes32 boxKey;
    }

    uint32 public providerCount;
    address public jobRegistry;
    uint32 private _activeJobs; // of all providers
    mapping(address => uint32) public providerIdOf;
    mapping(uint32 => Record) private _records;
    mapping(uint32 => mapping(uint32 => bool)) private _modelAllowed;
    mapping(bytes32 => uint8) public allowlistStatus;

    modifier known(uint32 providerId) {
        if (_records[providerId].operator == address(0)) revert UnknownProvider();
        _;
    }

    constructor(address owner) Relayed(owner, "SVC Providers") {}

    // --- providers ---

    function register() external returns (uint32 providerId) {
        if (providerIdOf[msg.sender] != 0) revert AlreadyRegistered();
        providerId = ++providerCount;
        providerIdOf[msg.sender] = providerId;
        Record storage record = _records[providerId];
        record.operator = msg.sender;
        record.reputation = FIRST_REPUTATION;
        record.requested = 1;
        emit ProviderRegistered(providerId, msg.sender);
        emit ReputationSet(providerId, FIRST_REPUTATION);
    }

    function setIdentity(bytes32 boxKey, bytes calldata evidence, uint64 issuedAt, bytes calldata sig) external {
        uint32 providerId = _signersId(
            keccak256(abi.encode(SET_IDENTITY_TYPEHASH, boxKey, keccak256(evidence), issuedAt)), sig
        );
        Record storage record = _records[providerId];
        _requireNewer(issuedAt, record.lastIdentityAt);
        if (evidence.length > LONGEST_EVIDENCE) revert EvidenceTooLong();
        record.lastIdentityAt = issuedAt;
        record.boxKey = boxKey;
        emit IdentitySet(providerId, boxKey, evidence, issuedAt);
    }

    function requestCapacity(uint32 n, uint64 issuedAt, bytes calldata sig) external {
        uint32 providerId = _signersId(keccak256(abi.encode(REQUEST_CAPACITY_TYPEHASH, n, issuedAt)), sig);
        Record storage record = _records[providerId];
        _requireNewer(issuedAt, record.lastCapacityAt);
        record.lastCapacityAt = issuedAt;
        record.requested = n;
        emit CapacityRequested(providerId, n, issuedAt);
    }

    // --- admin ---

    function setListed(uint32 providerId, bool listed) external onlyOwner known(providerId) {
        _records[providerId].listed = listed;
        emit ProviderListed(providerId, listed);
    }

    function setCeiling(uint32 providerId, uint32 ceiling) external onlyOwner known(providerId) {
        _records[providerId].ceiling = ceiling;
        emit CeilingSet(providerId, ceiling);
    }

    function setAllowAllModels(uint32 providerId, bool allowed) external onlyOwner known(providerId) {
        _records[providerId].allowAllModels = allowed;
        emit AllModelsAllowed(providerId, allowed);
    }

    function setModelAllowed(uint32 providerId, uint32 modelId, bool allowed) external onlyOwner known(providerId) {
        _modelAllowed[providerId][modelId] = allowed;
        emit ModelAllowed(providerId, modelId, allowed);
    }

    function setAllowlist(bytes32 key, uint8 status, string calldata entry) external onlyOwner {
        if (status > HIGHEST_STATUS) revert InvalidStatus();
        allowlistStatus[key] = status;
        emit AllowlistSet(key, status, entry);
    }

    function setJobRegistry(address newJobRegistry) external onlyOwner {
        if (newJobRegistry == address(0)) revert ZeroAddress();
        // The old registry could end none of its claimed jobs any more, and would hold their payments for ever.
        if (_activeJobs != 0) revert JobsActive();
        jobRegistry = newJobRegistry;
        emit JobRegistrySet(newJobRegistry);
    }

    // --- the job registry ---

    function jobClaimed(uint32 providerId) external {
        _requireJobRegistry();
        ++_activeJobs;
        ++_records[providerId].activeJobs;
    }

    function jobSettled(uint32 providerId) external {
        Record storage record = _endJob(providerId);
        _setReputation(providerId, record, Math.min(FULL_REPUTATION, record.reputation + GAIN_BY_SETTLING));
    }

    function jobFailed(uint32 providerId) external {
        Record storage record = _endJob(providerId);
        _setReputation(providerId, record, _lowered(record.reputation, LOSS_BY_FAILING));
    }

    function jobReclaimed(uint32 providerId) external {
        Record storage record = _endJob(providerId);
        _setReputation(providerId, record, _lowered(record.reputation, LOSS_BY_RECLAIM));
    }

    // --- reads ---

    function provider(uint32 providerId) external view returns (Provider memory) {
        Record storage record = _records[providerId];
        return Provider({
            operator: record.operator,
            boxKey: record.boxKey,
            listed: record.listed,
            allowAllModels: record.allowAllModels,
            reputation: record.reputation,
            requested: record.requested,
            ceiling: record.ceiling,
            activeJobs: record.activeJobs
        });
    }

    function operatorOf(uint32 providerId) external view returns (address) {
        return _records[providerId].operator;
    }

    function modelAllowed(uint32 providerId, uint32 modelId) external view returns (bool) {
        return _records[providerId].allowAllModels || _modelAllowed[providerId][modelId];
    }

    function capacityOf(uint32 providerId) external view returns (uint32) {
        Record storage record = _records[providerId];
        if (record.operator == address(0)) return 0;
        uint256 granted = Math.min(record.requested, record.ceiling);
        // At most `granted`, because reputation never passes FULL_REPUTATION: it fits.
        return uint32(Math.max(1, record.reputation * granted / FULL_REPUTATION));
    }

    function lastIdentityAt(uint32 providerId) external view returns (uint64) {
        return _records[providerId].lastIdentityAt;
    }

    function lastCapacityAt(uint32 providerId) external view returns (uint64) {
        return _records[providerId].lastCapacityAt;
    }

    // --- inside ---

    function _signersId(bytes32 structHash, bytes calldata sig) private view returns (uint32 providerId) {
        address signer = _authoriser(structHash, sig);
        if (signer == address(0)) revert InvalidSignature();
        providerId = providerIdOf[signer];
        if (providerId == 0) revert UnknownProvider();
    }

    /// Also asked of an operator that acts itself: its own far-off time would lock out its signed ops.
    function _requireNewer(uint64 issuedAt, uint64 last) private view {
        if (issuedAt <= last || issuedAt > block.timestamp + MOST_AHEAD) revert StaleOp();
    }

    function _requireJobRegistry() private view {
        if (msg.sender != jobRegistry) revert NotJobRegistry();
    }

    function _endJob(uint32 providerId) private returns (Record storage record) {
        _requireJobRegistry();
        record = _records[providerId];
        --_activeJobs;
        --record.activeJobs;
    }

    function _setReputation(uint32 providerId, Record storage record, uint256 reputation) private {
        if (reputation == record.reputation) return;
        record.reputation = uint16(reputation); // between LEAST_REPUTATION and FULL_REPUTATION
        emit ReputationSet(providerId, uint16(reputation));
    }

    function _lowered(uint16 reputation, uint16 loss) private pure returns (uint256) {
        return reputation < LEAST_REPUTATION + loss ? LEAST_REPUTATION : reputation - loss;
    }
}
