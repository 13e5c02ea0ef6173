// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {IJobRegistry} from "./interfaces/IJobRegistry.sol";
import {IProviderRegistry} from "./interfaces/IProviderRegistry.sol";
import {Catalogue} from "./Catalogue.sol";
import {Escrow} from "./Escrow.sol";
import {Quotes} from "./Quotes.sol";
import {Relayed} from "./Relayed.sol";
import {Signatures} from "./Signatures.sol";

/// Sealed jobs from post to ending.
///
/// Time bounds, all in block time, both ends included where not said otherwise:
///   claim    until expiresAt (the payment authorisation ends one second later)
///   settle   until claimedAt + slaSecs
///   reclaim  after claimedAt + slaSecs
///   an op's signature within 600 s of its issuedAt; an owner or operator that acts itself, with an empty
///   signature, has authorised the transaction and needs no window
contract JobRegistry is Catalogue, Escrow, Pausable {
    bytes32 private constant ORDER_TYPEHASH = keccak256(
        "Order(bytes32 c,uint32 modelId,uint32 slaSecs,uint128 rateIn,uint128 rateOut,uint32 unitsIn,uint32 unitsOut,uint32 designated,uint64 expiresAt)"
    );
    bytes32 private constant CLAIM_TYPEHASH = keccak256("Claim(bytes32 jobId,uint64 issuedAt)");
    bytes32 private constant SETTLE_TYPEHASH = keccak256("Settle(bytes32 jobId,uint32 completionTok,uint64 issuedAt)");
    bytes32 private constant FAIL_TYPEHASH = keccak256("Fail(bytes32 jobId,uint64 issuedAt)");
    bytes32 private constant CANCEL_TYPEHASH = keccak256("Cancel(bytes32 jobId,uint64 issuedAt)");
    uint256 private constant OP_WINDOW = 600;
    /// A day, as the coordinator holds every order to by its own clock, and a quarter of an hour for a latest block
    /// that is older than that clock: an order may well be simulated on it.
    uint256 private constant LONGEST_EXPIRY = 86_400 + 900;
    uint256 private constant LONGEST_CID = 128;

    /// Three slots. The commitment is not kept (the id binds it), nor is the payment signature (its event has it).
    struct StoredJob {
        address owner;
        uint32 modelId;
        uint32 slaSecs;
        State state;
        EndedBecause endedBecause;
        uint16 termsId;
        // next slot
        uint128 rateIn;
        uint128 rateOut;
        // next slot
        uint32 unitsIn;
        uint32 unitsOut;
        uint32 designated;
        uint32 providerId;
        uint64 expiresAt;
        uint64 claimedAt;
    }

    IProviderRegistry private immutable _providers;
    mapping(bytes32 => StoredJob) private _jobs;

    constructor(address owner, address paymentToken, address providerRegistry, address firstTreasury)
        Relayed(owner, "SVC Jobs")
        Catalogue(firstTreasury)
        Escrow(paymentToken)
    {
        if (providerRegistry == address(0)) revert ZeroAddress();
        _providers = IProviderRegistry(providerRegistry);
    }

    // --- the life of a job ---

    function post(
        Order calldata order,
        address owner,
        uint256 amount,
        string calldata taskCid,
        bytes calldata orderSig,
        bytes calldata paySig
    ) external whenNotPaused returns (bytes32 jobId) {
        // The task's CID is not signed: only the owner, or a relayer that it is entrusted to, may name it.
        if (msg.sender != owner && !isRelayer[msg.sender]) revert NotRelayer();
        jobId = keccak256(abi.encodePacked(owner, order.c));
        if (_jobs[jobId].owner != address(0)) revert DuplicateJob();
        Terms memory terms = _terms;
        _checkOrder(order, amount, terms);
        bytes32 orderHash = keccak256(abi.encode(ORDER_TYPEHASH, order));
        if (!Signatures.isBy(owner, _hashTypedDataV4(orderHash), orderSig)) revert InvalidOrderSignature();
        if (!Signatures.isBy(owner, _paymentDigest(owner, amount, order.expiresAt, jobId), paySig)) {
            revert InvalidPaymentSignature();
        }
        _checkPayer(owner, amount, jobId);
        _checkCid(taskCid);

        _jobs[jobId] = StoredJob({
            owner: owner,
            modelId: order.modelId,
            slaSecs: order.slaSecs,
            state: State.Open,
            endedBecause: EndedBecause.NotEnded,
            termsId: terms.id,
            rateIn: order.rateIn,
            rateOut: order.rateOut,
            unitsIn: order.unitsIn,
            unitsOut: order.unitsOut,
            designated: order.designated,
            providerId: 0,
            expiresAt: order.expiresAt,
            claimedAt: 0
        });
        emit JobPosted(
            jobId,
            owner,
            order.modelId,
            order.c,
            order.slaSecs,
            order.rateIn,
            order.rateOut,
            order.unitsIn,
            order.unitsOut,
            order.designated,
            order.expiresAt,
            terms.feeBps,
            terms.gasFee,
            taskCid,
            paySig
        );
    }

    function claim(bytes32 jobId, uint64 issuedAt, bytes calldata sig, bytes calldata paySig)
        external
        whenNotPaused
        nonReentrant
    {
        address operator = _operator(keccak256(abi.encode(CLAIM_TYPEHASH, jobId, issuedAt)), issuedAt, sig);
        StoredJob storage stored = _jobs[jobId];
        (bytes4 refusal, uint32 providerId) = _claimRefusal(stored, operator);
        if (refusal != 0) _revertWith(refusal);

        stored.state = State.Claimed;
        stored.providerId = providerId;
        stored.claimedAt = uint64(block.timestamp);
        _providers.jobClaimed(providerId);
        emit JobClaimed(jobId, providerId, uint64(block.timestamp));
        _collect(stored.owner, _amount(stored), stored.expiresAt, jobId, paySig);
    }

    // A credit can only be written once the token has refused. Whoever the token calls then finds the job ended and
    // every door shut; a view read at that moment misses a credit, never shows one too many.
    // slither-disable-next-line reentrancy-no-eth
    function settle(bytes32 jobId, uint32 completionTok, uint64 issuedAt, string calldata resultCid, bytes calldata sig)
        external
        nonReentrant
    {
        address operator =
            _operator(keccak256(abi.encode(SETTLE_TYPEHASH, jobId, completionTok, issuedAt)), issuedAt, sig);
        // The result's CID is not signed: see post.
        if (msg.sender != operator && !isRelayer[msg.sender]) revert NotRelayer();
        StoredJob storage stored = _claimedBy(jobId, operator);
        if (block.timestamp > _deadline(stored)) revert SlaExpired();
        if (completionTok > stored.unitsOut) revert TooManyUnits();
        _checkCid(resultCid);

        // Not above the cap, because completionTok is not above unitsOut.
        uint256 cost = Quotes.price(stored.rateIn, stored.rateOut, stored.unitsIn, completionTok);
        uint256 amount = _amount(stored);
        Terms memory terms = _termsOf[stored.termsId];
        uint256 treasuryShare = Quotes.fee(cost, terms.feeBps) + terms.gasFee;
        uint256 refund = amount - cost - treasuryShare;
        uint32 providerId = stored.providerId;

        _end(stored, State.Settled, EndedBecause.Settled, amount);
        _providers.jobSettled(providerId);
        emit JobSettled(jobId, providerId, completionTok, cost, treasuryShare, refund, resultCid);
        _pay(operator, cost);
        _pay(treasury, treasuryShare);
        _pay(stored.owner, refund);
    }

    function fail(bytes32 jobId, uint64 issuedAt, bytes calldata sig) external nonReentrant {
        address operator = _operator(keccak256(abi.encode(FAIL_TYPEHASH, jobId, issuedAt)), issuedAt, sig);
        StoredJob storage stored = _claimedBy(jobId, operator);
        uint32 providerId = stored.providerId;
        uint256 amount = _amount(stored);

        _end(stored, State.Cancelled, EndedBecause.FailedByProvider, amount);
        _providers.jobFailed(providerId);
        emit JobFailed(jobId, providerId);
        _pay(stored.owner, amount);
    }

    function reclaim(bytes32 jobId) external nonReentrant {
        StoredJob storage stored = _claimed(jobId);
        if (block.timestamp <= _deadline(stored)) revert SlaNotExpired();
        uint32 providerId = stored.providerId;
        uint256 amount = _amount(stored);

        _end(stored, State.Cancelled, EndedBecause.Reclaimed, amount);
        _providers.jobReclaimed(providerId);
        emit JobReclaimed(jobId, providerId);
        _pay(stored.owner, amount);
    }

    /// A job that has ended, by its expiry too, is left as it is: there is nothing to pay back before a claim.
    function cancel(bytes32 jobId, uint64 issuedAt, bytes calldata sig) external {
        StoredJob storage stored = _jobs[jobId];
        address signer = _authoriser(keccak256(abi.encode(CANCEL_TYPEHASH, jobId, issuedAt)), sig);
        if (signer == address(0) || signer != stored.owner) revert NotTheOwner();
        if (sig.length != 0) _requireInWindow(issuedAt);
        if (stored.state == State.Claimed) revert NotCancellable();
        if (stored.state != State.Open || block.timestamp > stored.expiresAt) return;

        stored.state = State.Cancelled;
        stored.endedBecause = EndedBecause.CancelledByOwner;
        emit JobCancelled(jobId);
    }

    // --- admin ---

    function pause() external onlyOwner {
        _pause();
    }

    function unpause() external onlyOwner {
        _unpause();
    }

    // --- reads ---

    function claimRefusal(bytes32 jobId, address operator) external view returns (bytes4 refusal) {
        (refusal,) = _claimRefusal(_jobs[jobId], operator);
    }

    function job(bytes32 jobId) external view returns (Job memory) {
        StoredJob storage stored = _jobs[jobId];
        Terms memory terms = _termsOf[stored.termsId];
        bool expired = stored.state == State.Open && block.timestamp > stored.expiresAt && stored.owner != address(0);
        return Job({
            owner: stored.owner,
            modelId: stored.modelId,
            slaSecs: stored.slaSecs,
            state: expired ? State.Cancelled : stored.state,
            endedBecause: expired ? EndedBecause.Expired : stored.endedBecause,
            feeBps: terms.feeBps,
            rateIn: stored.rateIn,
            rateOut: stored.rateOut,
            unitsIn: stored.unitsIn,
            unitsOut: stored.unitsOut,
            designated: stored.designated,
            providerId: stored.providerId,
            expiresAt: stored.expiresAt,
            claimedAt: stored.claimedAt,
            gasFee: terms.gasFee
        });
    }

    function providers() external view returns (address) {
        return address(_providers);
    }

    // --- checks ---

    function _checkOrder(Order calldata order, uint256 amount, Terms memory terms) private view {
        if (!modelEnabled[order.modelId]) revert ModelNotEnabled();
        if (!slaAllowed[order.slaSecs]) revert SlaNotAllowed();
        if (order.expiresAt <= block.timestamp) revert OrderExpired();
        if (order.expiresAt > block.timestamp + LONGEST_EXPIRY) revert ExpiryTooFar();
        uint256 cap = Quotes.price(order.rateIn, order.rateOut, order.unitsIn, order.unitsOut);
        if (cap > type(uint128).max) revert CapOverflow();
        if (amount != Quotes.total(cap, terms.feeBps, terms.gasFee)) revert WrongAmount();
    }

    function _checkPayer(address owner, uint256 amount, bytes32 jobId) private view {
        // A delegation (EIP-7702) is code as well. Tokens ask an account with code itself whether a signature
        // is good, so that the claim's outcome could not be foretold from it.
        if (owner.code.length != 0) revert PayerHasCode();
        if (_token.authorizationState(owner, jobId)) revert AuthorizationUsed();
        if (_token.balanceOf(owner) < amount) revert InsufficientBalance();
    }

    function _checkCid(string calldata cid) private pure {
        if (bytes(cid).length == 0 || bytes(cid).length > LONGEST_CID) revert InvalidCid();
    }

    function _claimRefusal(StoredJob storage stored, address operator)
        private
        view
        returns (bytes4 refusal, uint32 providerId)
    {
        if (stored.owner == address(0)) return (UnknownJob.selector, 0);
        if (stored.state != State.Open || block.timestamp > stored.expiresAt) return (NotOpen.selector, 0);
        providerId = _providers.providerIdOf(operator);
        if (providerId == 0) return (UnknownProvider.selector, 0);
        IProviderRegistry.Provider memory provider = _providers.provider(providerId);
        if (!provider.listed) return (NotListed.selector, providerId);
        if (!_providers.modelAllowed(providerId, stored.modelId)) return (ModelNotAllowed.selector, providerId);
        if (stored.designated != 0 && stored.designated != providerId) return (NotDesignated.selector, providerId);
        if (provider.activeJobs >= _providers.capacityOf(providerId)) return (AtCapacity.selector, providerId);
        return (0, providerId);
    }

    /// Who acts for a provider, inside the window if by signature.
    function _operator(bytes32 structHash, uint64 issuedAt, bytes calldata sig) private view returns (address signer) {
        signer = _authoriser(structHash, sig);
        if (signer == address(0)) revert InvalidSignature();
        if (sig.length != 0) _requireInWindow(issuedAt);
    }

    function _requireInWindow(uint64 issuedAt) private view {
        if (issuedAt + OP_WINDOW < block.timestamp || issuedAt > block.timestamp + OP_WINDOW) revert StaleOp();
    }

    function _claimed(bytes32 jobId) private view returns (StoredJob storage stored) {
        stored = _jobs[jobId];
        if (stored.owner == address(0)) revert UnknownJob();
        if (stored.state != State.Claimed) revert NotClaimed();
    }

    function _claimedBy(bytes32 jobId, address operator) private view returns (StoredJob storage stored) {
        stored = _claimed(jobId);
        if (_providers.providerIdOf(operator) != stored.providerId) revert NotTheClaimer();
    }

    // --- inside ---

    /// The last second in which the claimer may settle.
    function _deadline(StoredJob storage stored) private view returns (uint256) {
        return uint256(stored.claimedAt) + stored.slaSecs;
    }

    /// What the owner authorised, and what a claim collected.
    function _amount(StoredJob storage stored) private view returns (uint256) {
        Terms memory terms = _termsOf[stored.termsId];
        uint256 cap = Quotes.price(stored.rateIn, stored.rateOut, stored.unitsIn, stored.unitsOut);
        return Quotes.total(cap, terms.feeBps, terms.gasFee);
    }

    function _end(StoredJob storage stored, State state, EndedBecause because, uint256 amount) private {
        stored.state = state;
        stored.endedBecause = because;
        _release(amount);
    }

    function _revertWith(bytes4 refusal) private pure {
        assembly ("memory-safe") {
            mstore(0, refusal)
            revert(0, 4)
        }
    }
}
