// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// The life of a sealed job: posted by its owner, claimed and paid for, then ended exactly once.
///
/// An owner or operator that sends an op itself passes an empty `sig`; `issuedAt` is then ignored. Every call about a
/// job passes its terms, `Posted`, as its JobPosted event has them.
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
    /// The owner ended the id before any post of it.
    event OrderDiscarded(bytes32 indexed jobId, address indexed owner);

    /// A payout the token refused; `withdraw` pays it later.
    event PayoutCredited(bytes32 indexed jobId, address indexed party, uint256 amount);
    event CreditWithdrawn(address indexed party, uint256 amount);

    event ModelSet(uint32 indexed modelId, string name, bool enabled, string ownedBy, string paramsSchema);
    event SlaSet(uint32 indexed slaSecs, bool allowed);
    event FeesSet(uint16 feeBps, uint128 gasFee);
    event TreasurySet(address indexed treasury);
    event TokenGasSet(uint32 tokenGas);

    // post
    error DuplicateJob(); // the id is used: posted or discarded
    error ModelNotEnabled();
    error SlaNotAllowed();
    error OrderExpired();
    error ExpiryTooFar();
    error CapOverflow();
    error WrongAmount(); // `amount` is not cap + fee + gas fee
    error InvalidOrderSignature();
    error InvalidPaymentSignature(); // post: not the owner's; claim: not 65 bytes
    error PayerHasCode(); // at the post, or at the claim
    error AuthorizationUsed();
    error InsufficientBalance();
    error InvalidCid();
    error NotRelayer(); // post, claim, settle: the sender is neither a relayer nor the owner or operator
    // claim, in the order `claimRefusal` checks them
    error UnknownJob(); // no job was posted on these terms
    error NotOpen(); // claimed, ended or expired
    error UnknownProvider();
    error NotListed();
    error ModelNotAllowed(); // the model is disabled, or not allowed to this provider
    error NotDesignated();
    error AtCapacity();
    // claim, once the payment is collected
    error PaymentRefused(); // the token refused the transfer to the registry
    error PaymentShort(); // the token accepted the call, and the registry holds less than it owes
    error EscrowFull(); // the escrow's sum would not fit in 128 bits
    error TokenUnreadable(); // post, claim: the token did not answer a read
    // every signed op
    error StaleOp(); // issuedAt outside ±600 s of the block
    error InvalidSignature(); // malformed, high s, v not 27/28, or of no account
    // settle, fail, reclaim, cancel
    error NotClaimed();
    error NotTheClaimer();
    error SlaExpired();
    error SlaNotExpired();
    error TooManyUnits(); // completionTok above unitsOut
    error NotCancellable(); // the job is claimed
    error NotTheOwner(); // the signer owns no job of this id
    // withdraw
    error NothingToWithdraw();
    error WithdrawalRefused(); // the token refused the transfer to the party
    // admin
    error FeeTooHigh();
    error InvalidModel();
    error InvalidSla();
    error InvalidTokenGas();
    error InvalidTreasury(); // a registry or the token: what is paid there is lost
    error ZeroAddress();

    /// Post an order. jobId = keccak256(owner ‖ order.c).
    /// @dev Sender: a relayer or `owner`, because `taskCid` is not signed.
    /// @param amount cap + fee + gas fee at the current fees
    /// @param orderSig the owner's `Order` signature
    /// @param paySig the owner's `ReceiveWithAuthorization` signature of the token
    function post(
        Order calldata order,
        address owner,
        uint256 amount,
        string calldata taskCid,
        bytes calldata orderSig,
        bytes calldata paySig
    ) external returns (bytes32 jobId);

    /// Claim an open job and collect its payment.
    /// @dev Sender: a relayer with the operator's `Claim` signature, or the operator itself with an empty `sig`. The
    /// signature does not cover the terms, so the relayer is trusted to pass the terms that the operator saw.
    /// @param paySig as in the JobPosted event
    function claim(Posted calldata posted, uint64 issuedAt, bytes calldata sig, bytes calldata paySig) external;

    /// Claim the job that the call directly before this one in the same `relay` posts. Same checks and events as `claim`,
    /// without the terms.
    /// @dev Sender: a relayer with the operator's `Claim` signature. UnknownJob in any other place. `relay` runs the post
    /// and this as one call, in which the token checks the payment. If that call is refused, the post runs alone.
    function claimPosted(bytes32 jobId, uint64 issuedAt, bytes calldata sig) external;

    /// Settle a claimed job within its window: pay the operator, credit the treasury, refund the owner.
    /// @dev Sender: a relayer with the operator's `Settle` signature, or the operator itself with an empty `sig`.
    /// `resultCid` is not signed.
    function settle(
        Posted calldata posted,
        uint32 completionTok,
        uint64 issuedAt,
        string calldata resultCid,
        bytes calldata sig
    ) external;

    /// End a claimed job without a result and refund its owner. Past the deadline it costs what a reclaim costs.
    /// @dev Sender: anyone with the operator's `Fail` signature, or the operator itself with an empty `sig`.
    function fail(Posted calldata posted, uint64 issuedAt, bytes calldata sig) external;

    /// Cancel an open job. A job that has ended or expired is left as it is.
    /// @dev Sender: anyone with the owner's `Cancel` signature, or the owner itself with an empty `sig`.
    function cancel(Posted calldata posted, uint64 issuedAt, bytes calldata sig) external;

    /// End the sender's id of `c` before any post of it, so that an order that was signed with `c` can't be posted.
    function discard(bytes32 c) external;

    /// End a claimed job whose window has passed, and refund its owner. Anyone may send it.
    function reclaim(Posted calldata posted) external;

    /// Pay `party` its whole credit. Anyone may send it: only the party gains.
    function withdraw(address party) external;

    /// The selector of the first failing check of a claim, in the order above, or 0. Payment, signature and window are
    /// not checked.
    function claimRefusal(Posted calldata posted, address operator) external view returns (bytes4);

    /// State, claimer and claim time of a job. An open job past its expiry reads as open.
    function job(bytes32 jobId) external view returns (Job memory);
    /// What the registry owes `account` and the token refused to pay; for the treasury, its uncollected shares.
    function credit(address account) external view returns (uint256);
    /// Sum of the payments of all claimed jobs.
    function escrowed() external view returns (uint256);
    /// Sum of all credits.
    function totalCredits() external view returns (uint256);
    /// Fees of jobs that are posted now.
    function fees() external view returns (uint16 feeBps, uint128 gasFee);
    /// Highest flat fee that the admin can set, fixed at deployment.
    function maxGasFee() external view returns (uint128);
    /// True when the model can be ordered and claimed.
    function modelEnabled(uint32 modelId) external view returns (bool);
    /// True when orders may use this window.
    function slaAllowed(uint32 slaSecs) external view returns (bool);
    /// The payment token.
    function token() external view returns (address);
    /// Gas that one call of the token gets.
    function tokenGas() external view returns (uint32);
    /// The provider registry of this market.
    function providers() external view returns (address);
    /// Account that is credited the fees of settled jobs.
    function treasury() external view returns (address);

    /// Add, change, enable or disable a model. Admin only.
    /// @dev Disabling a model stops its posts and the claims of its open jobs. Claimed jobs continue.
    function setModel(
        uint32 modelId,
        string calldata name,
        bool enabled,
        string calldata ownedBy,
        string calldata paramsSchema
    ) external;
    /// Allow or forbid a window for later posts. Admin only.
    function setSla(uint32 slaSecs, bool allowed) external;
    /// Set the fees of later posts: at most 20 % and `maxGasFee`. Admin only.
    function setFees(uint16 feeBps, uint128 gasFee) external;
    /// Name the account that later settles credit. Admin only.
    function setTreasury(address treasury) external;
    /// Set the gas that one call of the token gets: 200,000 to 2,000,000. Admin only.
    function setTokenGas(uint32 gasOfOneCall) external;
    /// Stop posts and claims. Settle, fail, cancel, reclaim, discard and withdraw continue. Admin only.
    function pause() external;
    /// Allow posts and claims again. Admin only.
    function unpause() external;
}
