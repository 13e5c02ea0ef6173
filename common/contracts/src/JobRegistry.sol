// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {IJobRegistry} from "./interfaces/IJobRegistry.sol";
import {IProviderRegistry} from "./interfaces/IProviderRegistry.sol";
import {Catalogue} from "./Catalogue.sol";
import {Escrow} from "./Escrow.sol";
import {JobWord, JobWords} from "./JobWord.sol";
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

    /// A fail this soon after the claim is put down to the payload, as far as the provider's grace goes.
    uint256 private constant FAILURE_WINDOW = 300;

    IProviderRegistry private immutable _providers;
    mapping(bytes32 => JobWord) private _jobs;

    constructor(
        address owner,
        address paymentToken,
        address providerRegistry,
        address firstTreasury,
        uint128 highestGasFee
    ) Relayed(owner, "SVC Jobs") Catalogue(highestGasFee) Escrow(paymentToken) {
        if (providerRegistry == address(0)) revert ZeroAddress();
        _providers = IProviderRegistry(providerRegistry);
        _setTreasury(firstTreasury);
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
        bytes calldata claimCall = _takeAttached();
        // The task's CID is not signed: only the owner, or a relayer that it is entrusted to, may name it.
        _requireSentFor(owner);
        jobId = _idOf(owner, order.c);
        if (_jobs[jobId].exists()) revert DuplicateJob();
        Fees memory terms = fees;
        _checkOrder(order, amount, terms);
        if (!Signatures.isBy(owner, _hashTypedDataV4(_orderHash(order)), orderSig)) revert InvalidOrderSignature();
        // When the job is claimed at once, the token checks the authorisation as it pays.
        if (claimCall.length == 0) _checkPayment(order, owner, amount, jobId, paySig);
        // In any case before storage is written: a refusal that an owner can bring about must not cost more than a claim.
        _checkBalance(owner, amount);
        _checkCid(taskCid);

        JobWord word = JobWords.open(keccak256(abi.encode(order, owner, terms.feeBps, terms.gasFee)));
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
        if (claimCall.length == 0) _jobs[jobId] = word;
        else _claimAtOnce(jobId, word, order, owner, amount, paySig, claimCall);
    }

    // Who claims is only known from the provider registry, which is the market's own and calls nobody.
    // slither-disable-next-line reentrancy-no-eth
    function claim(Posted calldata posted, uint64 issuedAt, bytes calldata sig, bytes calldata paySig)
        external
        whenNotPaused
        nonReentrant
    {
        bytes32 jobId = _idOf(posted.owner, posted.order.c);
        address operator = _operator(keccak256(abi.encode(CLAIM_TYPEHASH, jobId, issuedAt)), issuedAt, sig);
        // The terms are not signed: an owner could post others under the same id, and claim them with this signature.
        _requireSentFor(operator);
        JobWord word = _jobs[jobId];
        bytes4 refusal = _jobRefusal(word, posted);
        if (refusal != 0) _revertWith(refusal);
        bool enabled = modelEnabled[posted.order.modelId];
        _claim(jobId, word, operator, posted.order, enabled, posted.owner, _amount(posted), paySig);
    }

    /// `relay` attaches this call to the post before it, which claims. By itself it claims nothing.
    function claimPosted(bytes32, uint64, bytes calldata) external pure {
        revert UnknownJob();
    }

    // A credit can only be written once the token has refused. Whoever the token calls then finds the job ended and
    // every door shut; a view read at that moment misses a credit, never shows one too many.
    // slither-disable-next-line reentrancy-no-eth
    function settle(
        Posted calldata posted,
        uint32 completionTok,
        uint64 issuedAt,
        string calldata resultCid,
        bytes calldata sig
    ) external nonReentrant {
        bytes32 jobId = _idOf(posted.owner, posted.order.c);
        address operator =
            _operator(keccak256(abi.encode(SETTLE_TYPEHASH, jobId, completionTok, issuedAt)), issuedAt, sig);
        // The result's CID is not signed: see post.
        _requireSentFor(operator);
        JobWord word = _claimed(jobId, posted);
        if (block.timestamp > _deadline(word, posted)) revert SlaExpired();
        if (completionTok > posted.order.unitsOut) revert TooManyUnits();
        _checkCid(resultCid);

        // Not above the cap, because completionTok is not above unitsOut.
        uint256 cost =
            Quotes.price(posted.order.rateIn, posted.order.rateOut, posted.order.unitsIn, completionTok);
        uint256 amount = _amount(posted);
        uint256 treasuryShare = Quotes.fee(cost, posted.feeBps) + posted.gasFee;
        uint256 refund = amount - cost - treasuryShare;

        _jobs[jobId] = word.ended(EndedBecause.Settled);
        // The treasury fetches its shares together, with `withdraw`: that spares every settle a transfer.
        _release(amount, treasury, treasuryShare);
        _providers.jobSettled(word.provider(), operator, posted.owner, treasuryShare);
        emit JobSettled(jobId, word.provider(), completionTok, cost, treasuryShare, refund, resultCid);
        _pay(jobId, operator, cost);
        _pay(jobId, posted.owner, refund);
    }

    // As in settle.
    // slither-disable-next-line reentrancy-no-eth
    function fail(Posted calldata posted, uint64 issuedAt, bytes calldata sig) external nonReentrant {
        bytes32 jobId = _idOf(posted.owner, posted.order.c);
        address operator = _operator(keccak256(abi.encode(FAIL_TYPEHASH, jobId, issuedAt)), issuedAt, sig);
        JobWord word = _claimed(jobId, posted);
        uint256 amount = _amount(posted);

        _end(jobId, word, EndedBecause.FailedByProvider, amount);
        bool prompt = block.timestamp <= word.claimedAt() + FAILURE_WINDOW;
        _providers.jobFailed(word.provider(), operator, prompt, block.timestamp > _deadline(word, posted));
        emit JobFailed(jobId, word.provider());
        _pay(jobId, posted.owner, amount);
    }

    // As in settle.
    // slither-disable-next-line reentrancy-no-eth
    function reclaim(Posted calldata posted) external nonReentrant {
        bytes32 jobId = _idOf(posted.owner, posted.order.c);
        JobWord word = _claimed(jobId, posted);
        if (block.timestamp <= _deadline(word, posted)) revert SlaNotExpired();
        uint256 amount = _amount(posted);

        _end(jobId, word, EndedBecause.Reclaimed, amount);
        _providers.jobReclaimed(word.provider());
        emit JobReclaimed(jobId, word.provider());
        _pay(jobId, posted.owner, amount);
    }

    /// A job that has ended, by its expiry too, is left as it is: there is nothing to pay back before a claim.
    function cancel(Posted calldata posted, uint64 issuedAt, bytes calldata sig) external {
        bytes32 jobId = _idOf(posted.owner, posted.order.c);
        address signer = _authoriser(keccak256(abi.encode(CANCEL_TYPEHASH, jobId, issuedAt)), sig);
        JobWord word = _jobs[jobId];
        if (signer == address(0) || signer != posted.owner || !word.exists()) revert NotTheOwner();
        if (sig.length != 0) _requireInWindow(issuedAt);
        if (word.isClaimed()) revert NotCancellable();
        if (!word.isOpen()) return;
        if (!word.isOn(_termsHash(posted))) revert UnknownJob();
        if (block.timestamp > posted.order.expiresAt) return;

        _jobs[jobId] = word.ended(EndedBecause.CancelledByOwner);
        emit JobCancelled(jobId);
    }

    function discard(bytes32 c) external {
        bytes32 jobId = _idOf(msg.sender, c);
        if (_jobs[jobId].exists()) revert DuplicateJob();
        _jobs[jobId] = JobWords.discarded();
        emit OrderDiscarded(jobId, msg.sender);
    }

    // --- admin ---

    function pause() external onlyOwner {
        _pause();
    }

    function unpause() external onlyOwner {
        _unpause();
    }

    function setTreasury(address newTreasury) external onlyOwner {
        _setTreasury(newTreasury);
    }

    /// Not while paused: nobody could ever unpause it.
    function renounceOwnership() public override(Ownable) whenNotPaused {
        super.renounceOwnership();
    }

    // --- reads ---

    function claimRefusal(Posted calldata posted, address operator) external view returns (bytes4 refusal) {
        refusal = _jobRefusal(_jobs[_idOf(posted.owner, posted.order.c)], posted);
        if (refusal != 0) return refusal;
        uint32 modelId = posted.order.modelId;
        return _providers.claimRefusal(operator, modelId, modelEnabled[modelId], posted.order.designated);
    }

    function job(bytes32 jobId) external view returns (Job memory) {
        JobWord word = _jobs[jobId];
        EndedBecause because = word.because();
        State state = because == EndedBecause.Settled ? State.Settled : State.Cancelled;
        if (because == EndedBecause.NotEnded) state = word.isClaimed() ? State.Claimed : State.Open;
        return Job({
            exists: word.exists(),
            state: state,
            endedBecause: because,
            providerId: word.provider(),
            claimedAt: word.claimedAt()
        });
    }

    function providers() external view returns (address) {
        return address(_providers);
    }

    // --- checks ---

    function _checkOrder(Order calldata order, uint256 amount, Fees memory terms) private view {
        if (!modelEnabled[order.modelId]) revert ModelNotEnabled();
        if (!slaAllowed[order.slaSecs]) revert SlaNotAllowed();
        if (order.expiresAt <= block.timestamp) revert OrderExpired();
        if (order.expiresAt > block.timestamp + LONGEST_EXPIRY) revert ExpiryTooFar();
        uint256 cap = Quotes.price(order.rateIn, order.rateOut, order.unitsIn, order.unitsOut);
        if (cap > type(uint128).max) revert CapOverflow();
        if (amount != Quotes.total(cap, terms.feeBps, terms.gasFee)) revert WrongAmount();
    }

    /// That the owner authorised the payment, and did not cancel it.
    function _checkPayment(
        Order calldata order,
        address owner,
        uint256 amount,
        bytes32 jobId,
        bytes calldata paySig
    ) private {
        if (!Signatures.isBy(owner, _paymentDigest(owner, amount, order.expiresAt, jobId), paySig)) {
            revert InvalidPaymentSignature();
        }
        _checkPayer(owner);
        _checkAuthorization(owner, jobId);
    }

    /// A delegation (EIP-7702) is code as well. Tokens ask an account with code itself whether a signature is good, so
    /// that the claim's outcome could not be foretold from it.
    function _checkPayer(address owner) private view {
        if (owner.code.length != 0) revert PayerHasCode();
    }

    function _checkCid(string calldata cid) private pure {
        if (bytes(cid).length == 0 || bytes(cid).length > LONGEST_CID) revert InvalidCid();
    }

    /// What a claim is refused for before anything about its provider is looked at.
    function _jobRefusal(JobWord word, Posted calldata posted) private view returns (bytes4) {
        if (!word.exists()) return UnknownJob.selector;
        if (!word.isOpen()) return NotOpen.selector;
        if (!word.isOn(_termsHash(posted))) return UnknownJob.selector;
        return block.timestamp > posted.order.expiresAt ? NotOpen.selector : bytes4(0);
    }

    /// Who acts for a provider, inside the window if by signature.
    function _operator(bytes32 structHash, uint64 issuedAt, bytes calldata sig) private view returns (address signer) {
        signer = _authoriser(structHash, sig);
        if (signer == address(0)) revert InvalidSignature();
        if (sig.length != 0) _requireInWindow(issuedAt);
    }

    function _requireSentFor(address party) private view {
        if (msg.sender != party && !isRelayer[msg.sender]) revert NotRelayer();
    }

    function _requireInWindow(uint64 issuedAt) private view {
        if (issuedAt + OP_WINDOW < block.timestamp || issuedAt > block.timestamp + OP_WINDOW) revert StaleOp();
    }

    function _claimed(bytes32 jobId, Posted calldata posted) private view returns (JobWord word) {
        word = _jobs[jobId];
        if (!word.exists()) revert UnknownJob();
        if (!word.isClaimed()) revert NotClaimed();
        if (!word.isOn(_termsHash(posted))) revert UnknownJob();
    }

    // --- inside ---

    function _followerOf(bytes4 selector) internal pure override returns (bytes4) {
        return selector == IJobRegistry.post.selector ? IJobRegistry.claimPosted.selector : bytes4(0);
    }

    /// Claim a job by the call that is attached to its post. The sender is a relayer, as `relay` made sure.
    function _claimAtOnce(
        bytes32 jobId,
        JobWord word,
        Order calldata order,
        address owner,
        uint256 amount,
        bytes calldata paySig,
        bytes calldata claimCall
    ) private nonReentrant {
        (bytes32 claimedId, uint64 issuedAt, bytes calldata sig) = _claimArguments(claimCall);
        if (claimedId != jobId) revert UnknownJob();
        address operator = _operator(keccak256(abi.encode(CLAIM_TYPEHASH, jobId, issuedAt)), issuedAt, sig);
        _claim(jobId, word, operator, order, true, owner, amount, paySig);
    }

    // The length and the offset of `sig` are two parts, which slither takes for one variable written twice.
    // slither-disable-start write-after-write

    /// Arguments of `claimPosted` as the ABI places them: selector, id, time, offset and length of the signature, its bytes.
    /// In a call that is too short or placed otherwise, what is read here is no signature of the operator.
    function _claimArguments(bytes calldata call)
        private
        pure
        returns (bytes32 jobId, uint64 issuedAt, bytes calldata sig)
    {
        assembly ("memory-safe") {
            jobId := calldataload(add(call.offset, 4))
            issuedAt := and(calldataload(add(call.offset, 36)), 0xffffffffffffffff)
            sig.length := calldataload(add(call.offset, 100))
            sig.offset := add(call.offset, 132)
        }
    }

    // slither-disable-end write-after-write

    /// Claim an open job that the sender may claim for `operator`. `enabled`: of its model.
    function _claim(
        bytes32 jobId,
        JobWord word,
        address operator,
        Order calldata order,
        bool enabled,
        address owner,
        uint256 amount,
        bytes calldata paySig
    ) private {
        if (paySig.length != 65) revert InvalidPaymentSignature();
        (bytes4 refusal, uint32 providerId) =
            _providers.jobClaimed(operator, order.modelId, enabled, order.designated);
        if (refusal != 0) _revertWith(refusal);
        // The owner may have got code since the post.
        _checkPayer(owner);
        _jobs[jobId] = word.claimed(providerId, block.timestamp);
        emit JobClaimed(jobId, providerId, uint64(block.timestamp));
        _collect(jobId, owner, order.expiresAt, amount, paySig);
    }

    function _idOf(address owner, bytes32 c) private pure returns (bytes32) {
        return keccak256(abi.encodePacked(owner, c));
    }

    /// keccak256(abi.encode(ORDER_TYPEHASH, order)), of the words in the calldata.
    function _orderHash(Order calldata order) private pure returns (bytes32 hash) {
        bytes32 typeHash = ORDER_TYPEHASH;
        assembly ("memory-safe") {
            let words := mload(0x40)
            mstore(words, typeHash)
            calldatacopy(add(words, 32), order, 288)
            hash := keccak256(words, 320)
        }
    }

    /// keccak256(abi.encode(posted)), of the words in the calldata. A value too large for its type gives another hash.
    function _termsHash(Posted calldata posted) private pure returns (bytes32 hash) {
        assembly ("memory-safe") {
            let words := mload(0x40)
            calldatacopy(words, posted, 384)
            hash := keccak256(words, 384)
        }
    }

    /// The last second in which the claimer may settle.
    function _deadline(JobWord word, Posted calldata posted) private pure returns (uint256) {
        return uint256(word.claimedAt()) + posted.order.slaSecs;
    }

    /// What the owner authorised, and what a claim collected.
    function _amount(Posted calldata posted) private pure returns (uint256) {
        Order calldata order = posted.order;
        uint256 cap = Quotes.price(order.rateIn, order.rateOut, order.unitsIn, order.unitsOut);
        return Quotes.total(cap, posted.feeBps, posted.gasFee);
    }

    function _end(bytes32 jobId, JobWord word, EndedBecause because, uint256 amount) private {
        _jobs[jobId] = word.ended(because);
        _release(amount, address(0), 0);
    }

    /// What is paid to a registry or to the token itself could never leave it again.
    function _setTreasury(address newTreasury) private {
        if (newTreasury == address(0)) revert ZeroAddress();
        if (newTreasury == address(this) || newTreasury == address(_token) || newTreasury == address(_providers)) {
            revert InvalidTreasury();
        }
        // The other registries of the market name its provider registry, as this one does.
        (bool done, bytes memory answer) = newTreasury.staticcall(abi.encodeCall(IJobRegistry.providers, ()));
        if (done && answer.length == 32 && abi.decode(answer, (uint256)) == uint160(address(_providers))) {
            revert InvalidTreasury();
        }
        treasury = newTreasury;
        emit TreasurySet(newTreasury);
    }

    function _revertWith(bytes4 refusal) private pure {
        assembly ("memory-safe") {
            mstore(0, refusal)
            revert(0, 4)
        }
    }
}
