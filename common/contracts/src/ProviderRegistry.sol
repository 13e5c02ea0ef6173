// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {IJobRegistry} from "./interfaces/IJobRegistry.sol";
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

    // Reputation and grace are kept in parts of a point, so that small jobs count by what they paid.
    uint32 private constant POINT = 1 << 16;
    uint16 private constant FULL_REPUTATION = 1000;
    uint16 private constant FIRST_REPUTATION = 500;
    uint16 private constant LEAST_REPUTATION = 100;
    uint16 private constant GAIN_BY_SETTLING = 5;
    uint16 private constant LOSS_BY_FAILING = 25;
    uint16 private constant LOSS_BY_RECLAIM = 100;
    uint16 private constant FIRST_GRACE = 40;
    uint16 private constant MOST_GRACE = 320;
    uint16 private constant GRACE_OF_A_FAIL = 20;

    /// All that an exit writes is in one slot, which the rest stands around.
    struct Record {
        address operator;
        // next slot
        bytes32 boxKey;
        // next slot: full, to the byte
        uint32 reputation; // parts of a point
        uint32 grace; // parts of a point
        uint32 requested;
        uint32 ceiling;
        uint32 activeJobs;
        uint40 lastIdentityAt; // at most an hour ahead of a block's time: it fits
        uint40 lastCapacityAt;
        bool listed;
        bool allowAllModels;
        // next slot
        address proposedOperator;
    }

    address public jobRegistry;
    /// What the treasury must get, in the token's smallest unit, for a provider to gain a point.
    uint96 public pointPrice;
    uint32 public providerCount;
    mapping(address => uint32) public providerIdOf;
    mapping(uint32 => Record) private _records;
    mapping(uint32 => mapping(uint32 => bool)) private _modelAllowed;
    mapping(bytes32 => uint8) public allowlistStatus;

    modifier known(uint32 providerId) {
        if (_records[providerId].operator == address(0)) revert UnknownProvider();
        _;
    }

    constructor(address owner, uint96 firstPointPrice) Relayed(owner, "SVC Providers") {
        _setPointPrice(firstPointPrice);
    }

    // --- providers ---

    function register() external returns (uint32 providerId) {
        if (providerIdOf[msg.sender] != 0) revert AlreadyRegistered();
        providerId = ++providerCount;
        providerIdOf[msg.sender] = providerId;
        Record storage record = _records[providerId];
        record.operator = msg.sender;
        record.reputation = FIRST_REPUTATION * POINT;
        record.grace = FIRST_GRACE * POINT;
        record.requested = 1;
        // An op that the operator signed for an earlier registration must not count for this one.
        (record.lastIdentityAt, record.lastCapacityAt) = (uint40(block.timestamp), uint40(block.timestamp));
        emit ProviderRegistered(providerId, msg.sender);
        emit StandingSet(providerId, FIRST_REPUTATION, FIRST_GRACE);
    }

    function setIdentity(bytes32 boxKey, bytes calldata evidence, uint64 issuedAt, bytes calldata sig) external {
        uint32 providerId = _signersId(
            keccak256(abi.encode(SET_IDENTITY_TYPEHASH, boxKey, keccak256(evidence), issuedAt)), sig
        );
        Record storage record = _records[providerId];
        _requireNewer(issuedAt, record.lastIdentityAt);
        if (evidence.length > LONGEST_EVIDENCE) revert EvidenceTooLong();
        record.lastIdentityAt = uint40(issuedAt);
        record.boxKey = boxKey;
        emit IdentitySet(providerId, boxKey, evidence, issuedAt);
    }

    function requestCapacity(uint32 n, uint64 issuedAt, bytes calldata sig) external {
        uint32 providerId = _signersId(keccak256(abi.encode(REQUEST_CAPACITY_TYPEHASH, n, issuedAt)), sig);
        Record storage record = _records[providerId];
        _requireNewer(issuedAt, record.lastCapacityAt);
        record.lastCapacityAt = uint40(issuedAt);
        record.requested = n;
        emit CapacityRequested(providerId, n, issuedAt);
    }

    function proposeOperator(address operator) external {
        uint32 providerId = _sendersId();
        _records[providerId].proposedOperator = operator;
        emit OperatorProposed(providerId, operator);
    }

    function acceptOperator(uint32 providerId) external {
        Record storage record = _records[providerId];
        if (msg.sender != record.proposedOperator) revert NotProposed();
        if (providerIdOf[msg.sender] != 0) revert AlreadyRegistered();
        delete providerIdOf[record.operator];
        delete record.proposedOperator;
        providerIdOf[msg.sender] = providerId;
        record.operator = msg.sender;
        emit OperatorChanged(providerId, msg.sender);
    }

    function deregister() external {
        uint32 providerId = _sendersId();
        if (_records[providerId].activeJobs != 0) revert JobsActive();
        delete providerIdOf[msg.sender];
        delete _records[providerId];
        emit ProviderDeregistered(providerId);
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
        // The old registry could not end its claimed jobs any more, and would hold their payments for ever.
        (, uint256 held) = _read(jobRegistry, abi.encodeCall(IJobRegistry.escrowed, ()));
        if (held != 0) revert JobsActive();
        // A job registry answers both. Another account, or the registry of another market, does not.
        (bool isJobRegistry,) = _read(newJobRegistry, abi.encodeCall(IJobRegistry.escrowed, ()));
        (, uint256 itsProviders) = _read(newJobRegistry, abi.encodeCall(IJobRegistry.providers, ()));
        if (!isJobRegistry || itsProviders != uint160(address(this))) revert InvalidJobRegistry();
        jobRegistry = newJobRegistry;
        emit JobRegistrySet(newJobRegistry);
    }

    function setPointPrice(uint96 newPointPrice) external onlyOwner {
        _setPointPrice(newPointPrice);
    }

    // --- the job registry ---

    function jobClaimed(address operator, uint32 modelId, bool modelEnabled, uint32 designated)
        external
        returns (bytes4 refusal, uint32 providerId)
    {
        _requireJobRegistry();
        (refusal, providerId) = _claimRefusal(operator, modelId, modelEnabled, designated);
        if (refusal == 0) ++_records[providerId].activeJobs;
    }

    function jobSettled(uint32 providerId, address operator, address owner, uint256 treasuryShare) external {
        Record storage record = _claimers(providerId, operator);
        // An order to oneself earns nothing but the money.
        uint256 gain = owner == operator ? 0 : _gain(treasuryShare);
        uint256 grace = Math.min(MOST_GRACE * POINT, record.grace + gain);
        _endJob(providerId, record, grace, Math.min(FULL_REPUTATION * POINT, record.reputation + gain));
    }

    function jobFailed(uint32 providerId, address operator, bool prompt, bool late) external {
        Record storage record = _claimers(providerId, operator);
        uint256 grace = record.grace;
        if (late) return _endJobAtALoss(providerId, record, LOSS_BY_RECLAIM);
        if (!prompt || grace < GRACE_OF_A_FAIL * POINT) return _endJobAtALoss(providerId, record, LOSS_BY_FAILING);
        _endJob(providerId, record, grace - GRACE_OF_A_FAIL * POINT, record.reputation);
    }

    function jobReclaimed(uint32 providerId) external {
        _requireJobRegistry();
        Record storage record = _records[providerId];
        _endJobAtALoss(providerId, record, LOSS_BY_RECLAIM);
    }

    // --- reads ---

    function provider(uint32 providerId) external view returns (Provider memory) {
        Record storage record = _records[providerId];
        return Provider({
            operator: record.operator,
            boxKey: record.boxKey,
            listed: record.listed,
            allowAllModels: record.allowAllModels,
            reputation: uint16(record.reputation / POINT),
            requested: record.requested,
            ceiling: record.ceiling,
            activeJobs: record.activeJobs,
            grace: uint16(record.grace / POINT)
        });
    }

    function operatorOf(uint32 providerId) external view returns (address) {
        return _records[providerId].operator;
    }

    function modelAllowed(uint32 providerId, uint32 modelId) external view returns (bool) {
        return _records[providerId].allowAllModels || _modelAllowed[providerId][modelId];
    }

    function claimRefusal(address operator, uint32 modelId, bool modelEnabled, uint32 designated)
        external
        view
        returns (bytes4 refusal)
    {
        (refusal,) = _claimRefusal(operator, modelId, modelEnabled, designated);
    }

    function capacityOf(uint32 providerId) external view returns (uint32) {
        Record storage record = _records[providerId];
        if (record.operator == address(0)) return 0;
        return _capacity(record.requested, record.ceiling, record.reputation);
    }

    function proposedOperator(uint32 providerId) external view returns (address) {
        return _records[providerId].proposedOperator;
    }

    function lastIdentityAt(uint32 providerId) external view returns (uint64) {
        return _records[providerId].lastIdentityAt;
    }

    function lastCapacityAt(uint32 providerId) external view returns (uint64) {
        return _records[providerId].lastCapacityAt;
    }

    // --- inside ---

    function _claimRefusal(address operator, uint32 modelId, bool modelEnabled, uint32 designated)
        private
        view
        returns (bytes4 refusal, uint32 providerId)
    {
        providerId = providerIdOf[operator];
        if (providerId == 0) return (UnknownProvider.selector, 0);
        Record storage record = _records[providerId];
        if (!record.listed) return (IJobRegistry.NotListed.selector, 0);
        bool allowed = modelEnabled && (record.allowAllModels || _modelAllowed[providerId][modelId]);
        if (!allowed) return (IJobRegistry.ModelNotAllowed.selector, 0);
        if (designated != 0 && designated != providerId) return (IJobRegistry.NotDesignated.selector, 0);
        uint32 capacity = _capacity(record.requested, record.ceiling, record.reputation);
        if (record.activeJobs >= capacity) return (IJobRegistry.AtCapacity.selector, 0);
    }

    function _capacity(uint32 requested, uint32 ceiling, uint32 reputation) private pure returns (uint32) {
        uint256 granted = Math.min(requested, ceiling);
        // At most `granted`, because reputation never passes FULL_REPUTATION: it fits. Parts of a point do not count.
        // slither-disable-next-line divide-before-multiply
        return uint32(Math.max(1, reputation / POINT * granted / FULL_REPUTATION));
    }

    function _sendersId() private view returns (uint32 providerId) {
        providerId = providerIdOf[msg.sender];
        if (providerId == 0) revert UnknownProvider();
    }

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

    function _claimers(uint32 providerId, address operator) private view returns (Record storage record) {
        _requireJobRegistry();
        record = _records[providerId];
        if (record.operator != operator) revert IJobRegistry.NotTheClaimer();
    }

    /// End a job that costs `loss` points. A provider that is at the floor already has none to lose, so it is delisted:
    /// otherwise it could claim and fail open orders for nothing.
    function _endJobAtALoss(uint32 providerId, Record storage record, uint256 loss) private {
        if (record.reputation == LEAST_REPUTATION * POINT && record.listed) {
            record.listed = false;
            emit ProviderListed(providerId, false);
        }
        _endJob(providerId, record, record.grace, _lowered(record.reputation, loss));
    }

    /// `grace` and `reputation` in parts of a point, both within their bounds. Written together: it is one slot.
    function _endJob(uint32 providerId, Record storage record, uint256 grace, uint256 reputation) private {
        uint32 activeJobs = record.activeJobs - 1;
        (uint256 points, uint256 gracePoints) = (record.reputation / POINT, record.grace / POINT);
        record.activeJobs = activeJobs;
        record.grace = uint32(grace);
        record.reputation = uint32(reputation);
        if (reputation / POINT != points || grace / POINT != gracePoints) {
            emit StandingSet(providerId, uint16(reputation / POINT), uint16(grace / POINT));
        }
    }

    /// Read one word of another contract. An account without code, or with another answer, gives (false, 0).
    function _read(address from, bytes memory call) private view returns (bool answered, uint256 word) {
        (bool done, bytes memory answer) = from.staticcall(call);
        if (done && answer.length == 32) return (true, abi.decode(answer, (uint256)));
    }

    function _setPointPrice(uint96 newPointPrice) private {
        pointPrice = newPointPrice;
        emit PointPriceSet(newPointPrice);
    }

    /// In parts of a point, rounded down.
    function _gain(uint256 treasuryShare) private view returns (uint256) {
        uint256 price = pointPrice;
        bool full = treasuryShare >= price * GAIN_BY_SETTLING;
        return full ? uint256(GAIN_BY_SETTLING) * POINT : treasuryShare * POINT / price;
    }

    function _lowered(uint256 reputation, uint256 loss) private pure returns (uint256) {
        return Math.max(LEAST_REPUTATION * POINT, Math.saturatingSub(reputation, loss * POINT));
    }
}
