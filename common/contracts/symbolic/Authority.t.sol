// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {JobWord, JobWords} from "../src/JobWord.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IRelayed} from "../src/interfaces/IRelayed.sol";
import {Ledger} from "./JobRegistry.t.sol";

/// A provider registry with one operator. It records how the last fail was reported.
contract OneOperator {
    address private immutable _operator;
    bool public prompt;
    bool public late;

    constructor(address operator) {
        _operator = operator;
    }

    function jobClaimed(address operator, uint32, bool, uint32) external view returns (bytes4, uint32) {
        return operator == _operator ? (bytes4(0), 7) : (bytes4(0x11111111), 0);
    }

    function jobSettled(uint32, address operator, address, uint256) external view {
        require(operator == _operator);
    }

    function jobFailed(uint32, address operator, bool wasPrompt, bool wasLate) external {
        require(operator == _operator);
        (prompt, late) = (wasPrompt, wasLate);
    }

    function jobReclaimed(uint32) external {}
}

/// Proofs of who may act, on which terms and when, for any sender, signature, signing time and block time.
contract AuthorityProofs is Ledger {
    bytes32 private constant ORDER_TYPEHASH = keccak256(
        "Order(bytes32 c,uint32 modelId,uint32 slaSecs,uint128 rateIn,uint128 rateOut,uint32 unitsIn,uint32 unitsOut,uint32 designated,uint64 expiresAt)"
    );

    OneOperator private _providers;

    struct Sent {
        address sender;
        bool relayer;
        bytes sig;
        uint64 issuedAt;
    }

    function makeProviders() internal override returns (address) {
        _providers = new OneOperator(OPERATOR);
        return address(_providers);
    }

    // --- only the named parties act ---

    function check_claim_is_by_the_operator_itself() public {
        claimBy(anySender(false));
    }

    function check_claim_is_by_the_operators_signature_through_a_relayer() public {
        claimBy(anySender(true));
    }

    function claimBy(Sent memory sent) private {
        IJobRegistry.Posted memory posted = anyAmount();
        store(posted, false);
        token.give(OWNER, amountOf(posted));
        vm.prank(sent.sender);
        try jobs.claim(posted, sent.issuedAt, sent.sig, new bytes(65)) {
            assert(authoriser(sent, opHash("Claim(bytes32 jobId,uint64 issuedAt)", sent)) == OPERATOR);
            assert(sent.sender == OPERATOR || sent.relayer);
            assertInWindow(sent, NOW);
        } catch {}
    }

    function check_settle_is_by_the_claimer_itself() public {
        settleBy(anySender(false));
    }

    function check_settle_is_by_the_claimers_signature_through_a_relayer() public {
        settleBy(anySender(true));
    }

    function settleBy(Sent memory sent) private {
        IJobRegistry.Posted memory posted = anyAmount();
        hold(posted);
        vm.prank(sent.sender);
        try jobs.settle(posted, 5, sent.issuedAt, "cid", sent.sig) {
            bytes32 typeHash = keccak256("Settle(bytes32 jobId,uint32 completionTok,uint64 issuedAt)");
            assert(authoriser(sent, keccak256(abi.encode(typeHash, jobId(), uint32(5), sent.issuedAt))) == OPERATOR);
            assert(sent.sender == OPERATOR || sent.relayer);
            assertInWindow(sent, NOW);
        } catch {}
    }

    function check_fail_is_by_the_claimer_itself() public {
        failBy(anySender(false));
    }

    function check_fail_is_by_the_claimers_signature() public {
        failBy(anySender(true));
    }

    function failBy(Sent memory sent) private {
        IJobRegistry.Posted memory posted = anyAmount();
        hold(posted);
        vm.prank(sent.sender);
        try jobs.fail(posted, sent.issuedAt, sent.sig) {
            assert(authoriser(sent, opHash("Fail(bytes32 jobId,uint64 issuedAt)", sent)) == OPERATOR);
            assertInWindow(sent, NOW);
        } catch {}
    }

    function check_cancel_is_by_the_owner_itself() public {
        cancelBy(anySender(false));
    }

    function check_cancel_is_by_the_owners_signature() public {
        cancelBy(anySender(true));
    }

    function cancelBy(Sent memory sent) private {
        IJobRegistry.Posted memory posted = anyAmount();
        store(posted, false);
        vm.prank(sent.sender);
        try jobs.cancel(posted, sent.issuedAt, sent.sig) {
            assert(authoriser(sent, opHash("Cancel(bytes32 jobId,uint64 issuedAt)", sent)) == OWNER);
            assertInWindow(sent, NOW);
        } catch {}
    }

    function check_discard_ends_an_unused_id_of_its_sender_alone() public {
        address sender = anyAccount("sender");
        IJobRegistry.Posted memory posted = anyAmount();
        bool exists = svm.createBool("exists");
        if (exists) store(posted, svm.createBool("claimed"));
        vm.prank(sender);
        try jobs.discard(C) {
            assert(sender != OWNER || !exists);
        } catch {
            assert(sender == OWNER && exists);
        }
        if (exists) assert(jobs.job(jobId()).endedBecause == IJobRegistry.EndedBecause.NotEnded);
        else assert(jobs.job(jobId()).exists == (sender == OWNER));
    }

    function check_post_is_signed_by_its_owner_and_sent_by_it_or_a_relayer() public {
        Sent memory sent = anySender(true);
        IJobRegistry.Posted memory posted = anyAmount();
        uint256 amount = capOf(posted);
        vm.store(address(jobs), keccak256(abi.encode(1, MODELS)), bytes32(uint256(1)));
        vm.store(address(jobs), keccak256(abi.encode(3600, SLAS)), bytes32(uint256(1)));
        token.give(OWNER, amount);
        bytes memory paySig = svm.createBytes(65, "paySig");
        vm.prank(sent.sender);
        try jobs.post(posted.order, OWNER, amount, "cid", sent.sig, paySig) {
            assert(sent.sender == OWNER || sent.relayer);
            assert(authoriser(sent, keccak256(abi.encode(ORDER_TYPEHASH, posted.order))) == OWNER);
            assert(recovered(paymentDigest(posted.order, amount), paySig) == OWNER);
        } catch {}
    }

    // --- terms that differ from the posted terms are refused ---

    function check_claim_of_other_terms_is_refused() public {
        (IJobRegistry.Posted memory other, JobWord word) = anyTerms(false);
        vm.prank(OPERATOR);
        try jobs.claim(other, 0, "", new bytes(65)) {
            assert(word.isOn(keccak256(abi.encode(other))));
        } catch {}
    }

    function check_settle_of_other_terms_is_refused() public {
        (IJobRegistry.Posted memory other, JobWord word) = anyTerms(true);
        vm.prank(OPERATOR);
        try jobs.settle(other, 0, 0, "cid", "") {
            assert(word.isOn(keccak256(abi.encode(other))));
        } catch {}
    }

    function check_fail_of_other_terms_is_refused() public {
        (IJobRegistry.Posted memory other, JobWord word) = anyTerms(true);
        vm.prank(OPERATOR);
        try jobs.fail(other, 0, "") {
            assert(word.isOn(keccak256(abi.encode(other))));
        } catch {}
    }

    function check_reclaim_of_other_terms_is_refused() public {
        (IJobRegistry.Posted memory other, JobWord word) = anyTerms(true);
        vm.warp(1 << 34);
        try jobs.reclaim(other) {
            assert(word.isOn(keccak256(abi.encode(other))));
        } catch {}
    }

    function check_cancel_of_other_terms_is_refused() public {
        (IJobRegistry.Posted memory other, JobWord word) = anyTerms(false);
        vm.prank(OWNER);
        try jobs.cancel(other, 0, "") {
            assert(word.isOn(keccak256(abi.encode(other))));
        } catch {}
    }

    // --- each time window ---

    function check_settle_is_taken_until_the_deadline_and_not_later() public {
        (IJobRegistry.Posted memory posted, uint256 deadline, uint256 time) = anyTime();
        vm.prank(OPERATOR);
        try jobs.settle(posted, 5, 0, "cid", "") {
            assert(time <= deadline);
        } catch (bytes memory why) {
            assert(time > deadline || bytes4(why) == IRelayed.CallStarved.selector);
        }
    }

    function check_reclaim_is_taken_after_the_deadline_and_not_before() public {
        (IJobRegistry.Posted memory posted, uint256 deadline, uint256 time) = anyTime();
        try jobs.reclaim(posted) {
            assert(time > deadline);
        } catch (bytes memory why) {
            assert(time <= deadline || bytes4(why) == IRelayed.CallStarved.selector);
        }
    }

    function check_fail_is_prompt_for_300_seconds_and_late_after_the_deadline() public {
        (IJobRegistry.Posted memory posted, uint256 deadline, uint256 time) = anyTime();
        uint256 claimedAt = deadline - posted.order.slaSecs;
        vm.prank(OPERATOR);
        try jobs.fail(posted, 0, "") {
            assert(_providers.prompt() == (time <= claimedAt + 300));
            assert(_providers.late() == (time > deadline));
        } catch (bytes memory why) {
            assert(bytes4(why) == IRelayed.CallStarved.selector);
        }
    }

    function check_claim_is_taken_until_the_expiry_and_not_later() public {
        (IJobRegistry.Posted memory posted,, uint256 time) = anyTime();
        posted.order.expiresAt = uint64(svm.createUint(40, "expiresAt"));
        store(posted, false);
        token.give(OWNER, amountOf(posted));
        vm.prank(OPERATOR);
        try jobs.claim(posted, 0, "", new bytes(65)) {
            assert(time <= posted.order.expiresAt);
        } catch (bytes memory why) {
            assert(time > posted.order.expiresAt || bytes4(why) == IRelayed.CallStarved.selector);
        }
    }

    /// A signature inside its window is never refused as stale. A signature outside is always refused as stale.
    function check_signed_fail_holds_for_600_seconds_either_way() public {
        (IJobRegistry.Posted memory posted,, uint256 time) = anyTime();
        Sent memory sent = anySender(true);
        vm.assume(authoriser(sent, opHash("Fail(bytes32 jobId,uint64 issuedAt)", sent)) == OPERATOR);
        vm.assume(sent.issuedAt < 1 << 40);
        vm.prank(sent.sender);
        try jobs.fail(posted, sent.issuedAt, sent.sig) {
            assertInWindow(sent, time);
        } catch (bytes memory why) {
            if (bytes4(why) == IJobRegistry.StaleOp.selector) {
                assert(sent.issuedAt + 600 < time || sent.issuedAt > time + 600);
            }
        }
    }

    // --- internal ---

    function anyAccount(string memory name) private returns (address) {
        return address(uint160(svm.createUint(160, name)));
    }

    function anySender(bool signed) private returns (Sent memory sent) {
        sent.sender = anyAccount("sender");
        uint256 relayer = svm.createUint(1, "relayer");
        vm.store(address(jobs), keccak256(abi.encode(sent.sender, RELAYERS)), bytes32(relayer));
        sent.relayer = relayer == 1;
        sent.issuedAt = uint64(svm.createUint(64, "issuedAt"));
        if (signed) sent.sig = svm.createBytes(65, "sig");
    }

    function authoriser(Sent memory sent, bytes32 structHash) private view returns (address) {
        if (sent.sig.length == 0) return sent.sender;
        return recovered(keccak256(abi.encodePacked(hex"1901", jobs.DOMAIN_SEPARATOR(), structHash)), sent.sig);
    }

    function recovered(bytes32 digest, bytes memory sig) private pure returns (address) {
        (bytes32 r, bytes32 s) = abi.decode(sig, (bytes32, bytes32));
        return ecrecover(digest, uint8(sig[64]), r, s);
    }

    function opHash(string memory kind, Sent memory sent) private pure returns (bytes32) {
        return keccak256(abi.encode(keccak256(bytes(kind)), jobId(), sent.issuedAt));
    }

    function paymentDigest(IJobRegistry.Order memory order, uint256 amount) private view returns (bytes32) {
        bytes32 typeHash = keccak256(
            "ReceiveWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
        );
        bytes32 structHash = keccak256(
            abi.encode(typeHash, OWNER, address(jobs), amount, 0, uint256(order.expiresAt) + 1, jobId())
        );
        return keccak256(abi.encodePacked(hex"1901", token.DOMAIN_SEPARATOR(), structHash));
    }

    function assertInWindow(Sent memory sent, uint256 time) private pure {
        if (sent.sig.length == 0) return;
        unchecked {
            assert(uint256(sent.issuedAt) + 600 >= time && sent.issuedAt <= time + 600);
        }
    }

    /// A claimed job whose payment is in escrow.
    function hold(IJobRegistry.Posted memory posted) private {
        store(posted, true);
        fund(amountOf(posted));
    }

    function fund(uint256 amount) private {
        vm.store(address(jobs), bytes32(SUMS), bytes32(uint256(uint128(amount))));
        token.give(address(jobs), amount);
    }

    /// A live job with any terms, and any terms that a caller may pass for it. The registry relies on different terms
    /// having different hashes in 191 bits.
    function anyTerms(bool claimed) private returns (IJobRegistry.Posted memory other, JobWord word) {
        other = anyOrder();
        other.order.modelId = uint32(svm.createUint(32, "modelId"));
        other.order.slaSecs = uint32(svm.createUint(32, "slaSecs"));
        other.order.designated = uint32(svm.createUint(32, "designated"));
        other.order.expiresAt = uint64(svm.createUint(64, "expiresAt"));
        word = JobWords.open(bytes32(svm.createUint(256, "hash of the posted terms")));
        if (claimed) word = word.claimed(1, NOW);
        storeWord(word);
        fund(1 << SUM_BITS);
        token.give(OWNER, 1 << SUM_BITS);
    }

    /// A job that was claimed at any time for any window, at any block time.
    function anyTime() private returns (IJobRegistry.Posted memory posted, uint256 deadline, uint256 time) {
        posted = anyAmount();
        posted.gasFee = 7;
        posted.order.slaSecs = uint32(svm.createUint(32, "slaSecs"));
        uint256 claimedAt = svm.createUint(32, "claimedAt");
        vm.assume(claimedAt != 0);
        storeWord(JobWords.open(keccak256(abi.encode(posted))).claimed(1, claimedAt));
        fund(amountOf(posted));
        time = svm.createUint(40, "time");
        vm.warp(time);
        unchecked {
            deadline = claimedAt + posted.order.slaSecs;
        }
    }
}
