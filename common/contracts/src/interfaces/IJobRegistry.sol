// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// The life of a sealed job: posted by its owner, claimed and paid for, then ended exactly once.
///
/// An owner or operator that sends an op itself gives an empty `sig`, and `issuedAt` is then not looked at. Whoever acts
/// on a job gives its terms, `Posted`, as they are in its JobPosted event; UnknownJob says that there is no job on such
/// terms.
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
        Expired // 5: never stored; an index reads an open job past its expiry so
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

    /// What JobPosted tells of a job, and what whoever acts on it gives again: the registry keeps a hash of this.
    /// Its job is keccak256(owner ‖ order.c).
    struct Posted {
        Order order;
        address owner;
        uint16 feeBps;
        uint128 gasFee;
    }

    /// A job as the registry holds it. An open one past its expiry reads as open: the expiry is in its terms.
    struct Job {
        bool exists;
        State state;
        EndedBecause endedBecause;
        uint32 providerId;
        uint64 claimedAt;
    }

    /// Neither the terms nor `paySig` are stored: whoever acts on the job reads them from here.
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
    event PayoutCredited(bytes32 indexed jobId, address indexed party, uint256 amount);
    event CreditWithdrawn(address indexed party, uint256 amount);

    event ModelSet(uint32 indexed modelId, string name, bool enabled, string ownedBy, string paramsSchema);
    event SlaSet(uint32 indexed slaSecs, bool allowed);
    event FeesSet(uint16 feeBps, uint128 gasFee);
    event TreasurySet(address indexed treasury);
    event TokenGasSet(uint32 tokenGas);

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
    error PayerHasCode(); // claim, too: after its other refusals
    error AuthorizationUsed();
    error InsufficientBalance();
    error InvalidCid();
    error NotRelayer(); // post and settle: sender is neither a relayer nor the owner / operator
    // claim, in the order `claimRefusal` checks them
    error UnknownJob();
    error NotOpen(); // an open job past its expiry, too
    error UnknownProvider();
    error NotListed();
    error ModelNotAllowed(); // to this provider, or to nobody any more
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
    error InvalidTokenGas();
    error InvalidTreasury(); // a registry or the token: what is paid there is lost
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
    function claim(Posted calldata posted, uint64 issuedAt, bytes calldata sig, bytes calldata paySig) external;

    /// Sender: a relayer with the operator's `Settle` signature, or the operator itself with an empty `sig`.
    function settle(
        Posted calldata posted,
        uint32 completionTok,
        uint64 issuedAt,
        string calldata resultCid,
        bytes calldata sig
    ) external;

    /// Sender: anyone with the operator's `Fail` signature, or the operator itself with an empty `sig`.
    function fail(Posted calldata posted, uint64 issuedAt, bytes calldata sig) external;

    /// Sender: anyone with the owner's `Cancel` signature, or the owner itself with an empty `sig`.
    function cancel(Posted calldata posted, uint64 issuedAt, bytes calldata sig) external;

    /// Anyone, once block time is past claimedAt + slaSecs.
    function reclaim(Posted calldata posted) external;

    /// Pays `party` its credit. Anyone may send it: nobody but the party gains.
    function withdraw(address party) external;

    /// The selector of the first failing check in the order above, or 0. Not: payment, signature, window.
    function claimRefusal(Posted calldata posted, address operator) external view returns (bytes4);

    function job(bytes32 jobId) external view returns (Job memory);
    function credit(address party) external view returns (uint256);
    function escrowed() external view returns (uint256);
    function totalCredits() external view returns (uint256);
    function fees() external view returns (uint16 feeBps, uint128 gasFee);
    function maxGasFee() external view returns (uint128);
    function modelEnabled(uint32 modelId) external view returns (bool);
    function slaAllowed(uint32 slaSecs) external view returns (bool);
    function token() external view returns (address);
    function tokenGas() external view returns (uint32);
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
    function setTokenGas(uint32 gasOfOneCall) external;
    function pause() external; // stops post and claim, never an exit
    function unpause() external;
}
