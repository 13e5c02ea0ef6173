// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// The life of a sealed job: posted by its owner, claimed and paid for, then ended exactly once.
///
/// An owner or operator that sends an op itself gives an empty `sig`, and `issuedAt` is then not looked at. `settle`,
/// `fail` and `reclaim` of a job that was never posted are refused with UnknownJob.
interface IJobRegistry {
    enum State {
        Open, // 0
        Claimed, // 1
        Settled, // 2
        Cancelled // 3: every other ending; `EndedBecause` tells which
    }

    enum EndedBecause {
        NotEnded, // 0
        Settled, // 1
        CancelledByOwner, // 2
        FailedByProvider, // 3
        Reclaimed, // 4
        Expired // 5: never stored; an open job past its expiry reads so
    }

    /// What the owner signs (EIP-712 type `Order`, field for field, in this order).
    struct Order {
        bytes32 c;
        uint32 modelId;
        uint32 slaSecs;
        uint128 rateIn;
        uint128 rateOut;
        uint32 unitsIn;
        uint32 unitsOut;
        uint32 designated;
        uint64 expiresAt;
    }

    /// A job as the registry holds it. `owner == address(0)`: there is no such job.
    struct Job {
        address owner;
        uint32 modelId;
        uint32 slaSecs;
        State state;
        EndedBecause endedBecause;
        uint16 feeBps;
        uint128 rateIn;
        uint128 rateOut;
        uint32 unitsIn;
        uint32 unitsOut;
        uint32 designated;
        uint32 providerId;
        uint64 expiresAt;
        uint64 claimedAt;
        uint128 gasFee;
    }

    /// `paySig` is not stored: whoever claims reads it from here.
    event JobPosted(
        bytes32 indexed jobId,
        address indexed owner,
        uint32 indexed modelId,
        bytes32 c,
        uint32 slaSecs,
        uint128 rateIn,
        uint128 rateOut,
        uint32 unitsIn,
        uint32 unitsOut,
        uint32 designated,
        uint64 expiresAt,
        uint16 feeBps,
        uint128 gasFee,
        string taskCid,
        bytes paySig
    );
    event JobClaimed(bytes32 indexed jobId, uint32 indexed providerId, uint64 claimedAt);
    event JobSettled(
        bytes32 indexed jobId,
        uint32 indexed providerId,
        uint32 completionTok,
        uint256 cost,
        uint256 treasuryShare,
        uint256 refund,
        string resultCid
    );
    event JobCancelled(bytes32 indexed jobId);
    event JobFailed(bytes32 indexed jobId, uint32 indexed providerId);
    event JobReclaimed(bytes32 indexed jobId, uint32 indexed providerId);

    /// A payout the token refused; `withdraw` pays it later.
    event PayoutCredited(address indexed party, uint256 amount);
    event CreditWithdrawn(address indexed party, address indexed to, uint256 amount);

    event ModelSet(uint32 indexed modelId, string name, bool enabled, string ownedBy, string paramsSchema);
    event SlaSet(uint32 indexed slaSecs, bool allowed);
    event FeesSet(uint16 feeBps, uint128 gasFee);
    event TreasurySet(address indexed treasury);

    // post
    error DuplicateJob();
    error ModelNotEnabled();
    error SlaNotAllowed();
    error OrderExpired();
    error ExpiryTooFar();
    error CapOverflow();
    error WrongAmount();
    error InvalidOrderSignature();
    error InvalidPaymentSignature();
    error PayerHasCode();
    error AuthorizationUsed();
    error InsufficientBalance();
    error InvalidCid();
    error NotRelayer(); // post and settle: sender is neither a relayer nor the owner / operator
    // claim, in the order `claimRefusal` checks them
    error UnknownJob();
    error NotOpen(); // an open job past its expiry, too
    error UnknownProvider();
    error NotListed();
    error ModelNotAllowed();
    error NotDesignated();
    error AtCapacity();
    error PaymentRefused(); // the token refused the transfer, or not exactly `amount` arrived; withdraw: it refused again
    // every signed op
    error StaleOp(); // issuedAt outside ±600 s of the block
    error InvalidSignature(); // malformed, high s, v not 27/28, or nobody
    // settle, fail, reclaim, cancel
    error NotClaimed();
    error NotTheClaimer();
    error SlaExpired();
    error SlaNotExpired();
    error TooManyUnits(); // completionTok above unitsOut
    error NotCancellable();
    error NotTheOwner();
    error NothingToWithdraw();
    // admin
    error FeeTooHigh();
    error InvalidModel();
    error InvalidSla();
    error ZeroAddress();

    /// Sender: a relayer or `owner`. jobId = keccak256(owner ‖ order.c).
    function post(
        Order calldata order,
        address owner,
        uint256 amount,
        string calldata taskCid,
        bytes calldata orderSig,
        bytes calldata paySig
    ) external returns (bytes32 jobId);

    /// Sender: anyone with the operator's `Claim` signature, or the operator itself with an empty `sig`. `paySig`: as emitted in JobPosted.
    function claim(bytes32 jobId, uint64 issuedAt, bytes calldata sig, bytes calldata paySig) external;

    /// Sender: a relayer with the operator's `Settle` signature, or the operator itself with an empty `sig`.
    function settle(bytes32 jobId, uint32 completionTok, uint64 issuedAt, string calldata resultCid, bytes calldata sig)
        external;

    /// Sender: anyone with the operator's `Fail` signature, or the operator itself with an empty `sig`.
    function fail(bytes32 jobId, uint64 issuedAt, bytes calldata sig) external;

    /// Sender: anyone with the owner's `Cancel` signature, or the owner itself with an empty `sig`.
    function cancel(bytes32 jobId, uint64 issuedAt, bytes calldata sig) external;

    /// Anyone, once block time is past claimedAt + slaSecs.
    function reclaim(bytes32 jobId) external;

    /// Pays the sender's credit to `to`.
    function withdraw(address to) external;

    /// The selector of the first failing check in the order above, or 0. Not: payment, signature, window.
    function claimRefusal(bytes32 jobId, address operator) external view returns (bytes4);

    function job(bytes32 jobId) external view returns (Job memory);
    function credit(address party) external view returns (uint256);
    function escrowed() external view returns (uint256);
    function totalCredits() external view returns (uint256);
    function fees() external view returns (uint16 feeBps, uint128 gasFee);
    function modelEnabled(uint32 modelId) external view returns (bool);
    function slaAllowed(uint32 slaSecs) external view returns (bool);
    function token() external view returns (address);
    function providers() external view returns (address);
    function treasury() external view returns (address);

    // owner (admin) only
    function setModel(
        uint32 modelId,
        string calldata name,
        bool enabled,
        string calldata ownedBy,
        string calldata paramsSchema
    ) external;
    function setSla(uint32 slaSecs, bool allowed) external;
    function setFees(uint16 feeBps, uint128 gasFee) external;
    function setTreasury(address treasury) external;
    function pause() external; // stops post and claim, never an exit
    function unpause() external;
}
