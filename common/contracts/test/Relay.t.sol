// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IRelayed} from "../src/interfaces/IRelayed.sol";
import {Vm} from "./Check.sol";
import {World} from "./World.sol";

contract RelayTest is World {
    function test_relay_by_anyone_else_is_refused() public {
        vm.expectRevert(IRelayed.SenderNotRelayer.selector);
        jobs.relay(new bytes[](0));
        jobs.setRelayer(relayer, false);
        vm.prank(relayer);
        vm.expectRevert(IRelayed.SenderNotRelayer.selector);
        jobs.relay(new bytes[](0));
    }

    function test_relay_carries_a_whole_life_in_one_transaction() public {
        Draft memory d = draft();
        bytes32 jobId = idOf(client, d.order.c);
        bytes[] memory calls = new bytes[](3);
        calls[0] = postCall(d);
        calls[1] = claimCall(d);
        bytes memory sig = settleSig(PROVIDER_KEY, jobId, 1, uint64(START));
        calls[2] = abi.encodeCall(jobs.settle, (terms(jobId), 1, uint64(START), CID, sig));
        vm.prank(relayer);
        jobs.relay(calls);
        assertState(jobId, IJobRegistry.State.Settled, IJobRegistry.EndedBecause.Settled);
    }

    function test_refused_calls_are_reported_by_index_and_harm_no_other() public {
        Draft memory wrong = draftOf("wrong");
        wrong.amount += 1;
        bytes[] memory calls = new bytes[](6);
        calls[0] = postCall(wrong);
        calls[1] = postCall(draftOf("one"));
        calls[2] = hex"deadbeef"; // no such function
        calls[3] = hex"";
        calls[4] = postCall(draftOf("two"));
        calls[5] = postCall(draftOf("one"));

        vm.recordLogs();
        vm.prank(relayer);
        jobs.relay(calls);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        vm.assertEq(logs.length, 6);
        assertRefused(logs[0], 0, abi.encodePacked(IJobRegistry.WrongAmount.selector));
        assertRefused(logs[2], 2, "");
        assertRefused(logs[3], 3, "");
        assertRefused(logs[5], 5, abi.encodePacked(IJobRegistry.DuplicateJob.selector));
        assertState(idOf(client, "two"), IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
        vm.assertEq(jobs.job(idOf(client, "two")).exists, true);
    }

    function test_refused_claim_inside_a_relay_leaves_no_trace_of_itself() public {
        Draft memory d = draft();
        cancelAuthorization(CLIENT_KEY, "unrelated");
        bytes32 jobId = post(d);
        cancelAuthorization(CLIENT_KEY, jobId);
        bytes[] memory calls = new bytes[](1);
        calls[0] = claimCall(d);
        vm.recordLogs();
        vm.prank(relayer);
        jobs.relay(calls);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        assertRefused(logs[logs.length - 1], 0, abi.encodePacked(IJobRegistry.PaymentRefused.selector));
        vm.assertEq(jobs.escrowed(), 0);
        vm.assertEq(providers.provider(providerId).activeJobs, 0);
    }

    function test_relay_gives_its_calls_no_power_that_the_relayer_lacks() public {
        (bytes32 jobId,) = posted();
        bytes[] memory calls = new bytes[](3);
        calls[0] = abi.encodeCall(jobs.setFees, (2000, 0));
        calls[1] = abi.encodeCall(jobs.setRelayer, (stranger, true));
        calls[2] = abi.encodeCall(jobs.cancel, (terms(jobId), uint64(START), ""));
        vm.prank(relayer);
        jobs.relay(calls);
        (uint16 feeBps,) = jobs.fees();
        vm.assertEq(feeBps, FEE_BPS);
        vm.assertEq(jobs.isRelayer(stranger), false);
        assertState(jobId, IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
    }

    /// With any gas limit, no valid call is reported as rejected: either all calls run, or the transaction reverts.
    function test_starved_relay_reverts_and_never_reports_a_refusal(uint32 gasLimit) public {
        bytes[] memory calls = new bytes[](4);
        for (uint256 i = 0; i < 2; ++i) {
            Draft memory d = draftOf(bytes32(i));
            calls[2 * i] = postCall(d);
            calls[2 * i + 1] = claimCall(d);
        }
        vm.recordLogs();
        vm.prank(relayer);
        try jobs.relay{gas: bound(gasLimit, 30_000, 1_000_000)}(calls) {
            vm.assertEq(jobs.escrowed(), 2 * draft().amount);
        } catch {
            vm.assertEq(jobs.escrowed(), 0);
        }
        Vm.Log[] memory logs = vm.getRecordedLogs();
        for (uint256 i = 0; i < logs.length; ++i) {
            vm.assertTrue(logs[i].topics[0] != IRelayed.CallRefused.selector, "a good call was refused");
        }
    }

    function test_starved_relay_says_so_by_name() public {
        bytes[] memory calls = new bytes[](1);
        calls[0] = postCall(draft());
        vm.prank(relayer);
        vm.expectRevert(IRelayed.CallStarved.selector);
        jobs.relay{gas: 45_000}(calls);
    }

    function test_refused_call_with_gas_to_spare_is_not_taken_for_a_starved_one() public {
        bytes[] memory calls = new bytes[](1);
        Draft memory d = draft();
        d.taskCid = ""; // rejected last, after all costs of a post except its storage
        calls[0] = postCall(d);
        vm.recordLogs();
        vm.prank(relayer);
        jobs.relay{gas: 100_000}(calls);
        assertRefused(vm.getRecordedLogs()[0], 0, abi.encodePacked(IJobRegistry.InvalidCid.selector));
    }

    // --- claimPosted: a post and its claim in one relay ---

    function test_post_and_its_claim_ride_in_one_relay() public {
        Draft memory d = draft();
        bytes32 jobId = idOf(client, d.order.c);
        bytes[] memory calls = new bytes[](2);
        (calls[0], calls[1]) = (postCall(d), shortClaim(jobId));
        vm.recordLogs();
        vm.prank(relayer);
        jobs.relay(calls);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        vm.assertEq(logs[0].topics[0], IJobRegistry.JobPosted.selector);
        vm.assertEq(logs[1].topics[0], IJobRegistry.JobClaimed.selector);
        assertState(jobId, IJobRegistry.State.Claimed, IJobRegistry.EndedBecause.NotEnded);
        vm.assertEq(jobs.escrowed(), d.amount);
        vm.assertEq(token.balanceOf(client), 1e18 - d.amount);
        settle(jobId, 4096); // on the terms of the post
        vm.assertEq(jobs.escrowed(), 0);
    }

    /// The short claim has every check of a claim, and a rejected claim keeps its post.
    function test_refused_short_claim_keeps_the_post() public {
        bytes32 jobId = idOf(client, draft().order.c);
        shortClaimRefused(rivalsOrder(), shortClaim(jobId), IJobRegistry.NotDesignated.selector);
        bytes memory stranger_ = opSig(STRANGER_KEY, "Claim", jobId, uint64(START));
        shortClaimRefused(
            draft(),
            abi.encodeCall(jobs.claimPosted, (jobId, uint64(START), stranger_)),
            IJobRegistry.UnknownProvider.selector
        );
        bytes memory old = opSig(PROVIDER_KEY, "Claim", jobId, uint64(START - 601));
        shortClaimRefused(
            draft(), abi.encodeCall(jobs.claimPosted, (jobId, uint64(START - 601), old)), IJobRegistry.StaleOp.selector
        );
        shortClaimRefused(draft(), shortClaim(idOf(client, "other")), IJobRegistry.UnknownJob.selector);
        token.setBlacklisted(client, true);
        shortClaimRefused(draft(), shortClaim(jobId), IJobRegistry.PaymentRefused.selector);
        token.setBlacklisted(client, false);
        providers.setListed(providerId, false);
        shortClaimRefused(draft(), shortClaim(jobId), IJobRegistry.NotListed.selector);
    }

    function test_short_claim_is_for_the_last_post_of_its_relay_alone() public {
        (bytes32 jobId,) = posted();
        bytes memory sig = opSig(PROVIDER_KEY, "Claim", jobId, uint64(START));
        vm.prank(relayer);
        vm.expectRevert(IJobRegistry.UnknownJob.selector);
        jobs.claimPosted(jobId, uint64(START), sig);
        bytes[] memory calls = new bytes[](3);
        (calls[0], calls[1]) = (postCall(draftOf("two")), postCall(draftOf("three")));
        calls[2] = shortClaim(idOf(client, "two"));
        vm.recordLogs();
        vm.prank(relayer);
        jobs.relay(calls);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        assertRefused(logs[logs.length - 1], 2, abi.encodePacked(IJobRegistry.UnknownJob.selector));
    }

    function test_short_claim_claims_a_job_once() public {
        Draft memory d = draft();
        bytes32 jobId = idOf(client, d.order.c);
        bytes[] memory calls = new bytes[](3);
        (calls[0], calls[1], calls[2]) = (postCall(d), shortClaim(jobId), shortClaim(jobId));
        vm.recordLogs();
        vm.prank(relayer);
        jobs.relay(calls);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        assertRefused(logs[logs.length - 1], 2, abi.encodePacked(IJobRegistry.UnknownJob.selector));
        vm.assertEq(jobs.escrowed(), d.amount);
    }

    /// The token checks the payment of a pair. If the token rejects it, the post runs alone and names each fault.
    function test_bad_payment_refuses_post_and_short_claim() public {
        Draft memory d = draft();
        d.paySig = sign(STRANGER_KEY, paymentDigest(client, d.amount, d.order.expiresAt, idOf(client, "c")));
        pairRefused(d, IJobRegistry.InvalidPaymentSignature.selector, IJobRegistry.PaymentRefused.selector);
        d.paySig = highS(draft().paySig);
        pairRefused(d, IJobRegistry.InvalidPaymentSignature.selector, IJobRegistry.PaymentRefused.selector);
        d.paySig = bytes.concat(draft().paySig, hex"00");
        pairRefused(d, IJobRegistry.InvalidPaymentSignature.selector, IJobRegistry.InvalidPaymentSignature.selector);
        d = draft();
        d.amount -= 1;
        pairRefused(d, IJobRegistry.WrongAmount.selector, IJobRegistry.WrongAmount.selector);

        uint256 balance = token.balanceOf(client);
        vm.prank(client);
        token.transfer(stranger, balance);
        pairRefused(draft(), IJobRegistry.InsufficientBalance.selector, IJobRegistry.InsufficientBalance.selector);
        vm.prank(stranger);
        token.transfer(client, balance);
        vm.etch(client, bytes.concat(hex"ef0100", bytes20(rival)));
        pairRefused(draft(), IJobRegistry.PayerHasCode.selector, IJobRegistry.PayerHasCode.selector);
        vm.etch(client, "");
        cancelAuthorization(CLIENT_KEY, idOf(client, "c"));
        pairRefused(draft(), IJobRegistry.AuthorizationUsed.selector, IJobRegistry.PaymentRefused.selector);
    }

    function test_refused_pair_claims_no_later_post() public {
        Draft memory d = draft();
        d.amount -= 1;
        bytes[] memory calls = new bytes[](3);
        (calls[0], calls[1], calls[2]) = (postCall(d), shortClaim(idOf(client, "c")), postCall(draftOf("two")));
        vm.prank(relayer);
        jobs.relay(calls);
        vm.assertEq(jobs.job(idOf(client, "c")).exists, false);
        vm.assertEq(jobs.job(idOf(client, "two")).exists, true);
        assertState(idOf(client, "two"), IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
    }

    /// With any gas limit, no post loses its claim, and no short claim is reported as rejected.
    function test_starved_pairs_revert_and_are_never_taken_apart(uint32 gasLimit) public {
        bytes[] memory calls = new bytes[](4);
        for (uint256 i = 0; i < 2; ++i) {
            Draft memory d = draftOf(bytes32(i));
            (calls[2 * i], calls[2 * i + 1]) = (postCall(d), shortClaim(idOf(client, bytes32(i))));
        }
        vm.recordLogs();
        vm.prank(relayer);
        try jobs.relay{gas: bound(gasLimit, 30_000, 1_000_000)}(calls) {
            vm.assertEq(jobs.escrowed(), 2 * draft().amount);
        } catch {
            vm.assertEq(jobs.escrowed(), 0);
        }
        Vm.Log[] memory logs = vm.getRecordedLogs();
        for (uint256 i = 0; i < logs.length; ++i) {
            vm.assertTrue(logs[i].topics[0] != IRelayed.CallRefused.selector, "a good call was refused");
        }
    }

    function test_pair_is_refused_while_the_registry_is_paused() public {
        jobs.pause();
        pairRefused(draft(), Pausable.EnforcedPause.selector, Pausable.EnforcedPause.selector);
    }

    function rivalsOrder() private view returns (Draft memory) {
        IJobRegistry.Order memory order = orderOf("c");
        order.designated = rivalId;
        return signed(order);
    }

    function shortClaimRefused(Draft memory d, bytes memory claim_, bytes4 refusal) private {
        uint256 before = vm.snapshotState();
        bytes[] memory calls = new bytes[](2);
        (calls[0], calls[1]) = (postCall(d), claim_);
        vm.recordLogs();
        vm.prank(relayer);
        jobs.relay(calls);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        assertRefused(logs[logs.length - 1], 1, abi.encodePacked(refusal));
        assertState(idOf(client, "c"), IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
        vm.assertEq(jobs.job(idOf(client, "c")).exists, true);
        vm.assertEq(jobs.escrowed(), 0);
        vm.assertEq(providers.provider(providerId).activeJobs, 0);
        vm.revertToState(before);
    }

    function pairRefused(Draft memory d, bytes4 why, bytes4 whyClaim) private {
        uint256 before = vm.snapshotState();
        bytes[] memory calls = new bytes[](2);
        (calls[0], calls[1]) = (postCall(d), shortClaim(idOf(client, d.order.c)));
        vm.recordLogs();
        vm.prank(relayer);
        jobs.relay(calls);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        assertRefused(logs[logs.length - 2], 0, abi.encodePacked(why));
        assertRefused(logs[logs.length - 1], 1, abi.encodePacked(whyClaim));
        vm.assertEq(jobs.job(idOf(client, d.order.c)).exists, false);
        vm.assertEq(jobs.escrowed(), 0);
        vm.assertEq(providers.provider(providerId).activeJobs, 0);
        vm.revertToState(before);
    }

    function shortClaim(bytes32 jobId) private view returns (bytes memory) {
        bytes memory sig = opSig(PROVIDER_KEY, "Claim", jobId, uint64(START));
        return abi.encodeCall(jobs.claimPosted, (jobId, uint64(START), sig));
    }

    function postCall(Draft memory d) private returns (bytes memory) {
        keep(d);
        return abi.encodeCall(jobs.post, (d.order, d.owner, d.amount, d.taskCid, d.orderSig, d.paySig));
    }

    function claimCall(Draft memory d) private view returns (bytes memory) {
        bytes32 jobId = idOf(d.owner, d.order.c);
        bytes memory sig = opSig(PROVIDER_KEY, "Claim", jobId, uint64(START));
        return abi.encodeCall(jobs.claim, (terms(jobId), uint64(START), sig, d.paySig));
    }

    function assertRefused(Vm.Log memory log, uint256 index, bytes memory reason) private pure {
        vm.assertEq(log.topics[0], IRelayed.CallRefused.selector);
        vm.assertEq(uint256(log.topics[1]), index);
        vm.assertEq(abi.decode(log.data, (bytes)), reason);
    }
}
