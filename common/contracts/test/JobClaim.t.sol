// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {World} from "./World.sol";

contract JobClaimTest is World {
    function test_claim_collects_the_whole_amount_and_names_the_claimer() public {
        (bytes32 jobId, Draft memory d) = posted();
        uint256 before = token.balanceOf(client);
        vm.expectEmit(address(jobs));
        emit IJobRegistry.JobClaimed(jobId, providerId, uint64(time()));
        claim(jobId, d.paySig);

        assertState(jobId, IJobRegistry.State.Claimed, IJobRegistry.EndedBecause.NotEnded);
        vm.assertEq(jobs.job(jobId).providerId, providerId);
        vm.assertEq(jobs.job(jobId).claimedAt, time());
        vm.assertEq(token.balanceOf(client), before - d.amount);
        vm.assertEq(token.balanceOf(address(jobs)), d.amount);
        vm.assertEq(jobs.escrowed(), d.amount);
        vm.assertEq(providers.provider(providerId).activeJobs, 1);
    }

    function test_claim_is_sent_by_a_relayer_with_the_operators_signature() public {
        (bytes32 jobId, Draft memory d) = posted();
        bytes memory sig = opSig(PROVIDER_KEY, "Claim", jobId, uint64(time()));
        vm.expectRevert(IJobRegistry.NotRelayer.selector);
        claimAs(stranger, jobId, uint64(time()), sig, d.paySig);
        claimAs(relayer, jobId, uint64(time()), sig, d.paySig);
        vm.assertEq(jobs.job(jobId).providerId, providerId);
    }

    function test_claim_signature_holds_for_ten_minutes_either_way() public {
        (bytes32 jobId, Draft memory d) = posted();
        uint64[4] memory issuedAt =
            [uint64(START - 601), uint64(START + 601), uint64(START - 600), uint64(START + 600)];
        for (uint256 i = 0; i < 4; ++i) {
            bytes memory sig = opSig(PROVIDER_KEY, "Claim", jobId, issuedAt[i]);
            uint256 snapshot = vm.snapshotState();
            if (i < 2) vm.expectRevert(IJobRegistry.StaleOp.selector);
            claimAs(relayer, jobId, issuedAt[i], sig, d.paySig);
            vm.revertToState(snapshot);
        }
    }

    function test_claim_with_a_malformed_signature_is_refused() public {
        (bytes32 jobId, Draft memory d) = posted();
        bytes[] memory wrong = malformed(opSig(PROVIDER_KEY, "Claim", jobId, uint64(time())));
        for (uint256 i = 0; i < wrong.length; ++i) {
            vm.expectRevert(IJobRegistry.InvalidSignature.selector);
            claimAs(relayer, jobId, uint64(time()), wrong[i], d.paySig);
        }
    }

    function test_claim_signed_for_another_job_counts_for_nobody() public {
        (bytes32 jobId, Draft memory d) = posted();
        bytes memory sig = opSig(PROVIDER_KEY, "Claim", "other", uint64(time()));
        vm.expectRevert(IJobRegistry.UnknownProvider.selector);
        claimAs(relayer, jobId, uint64(time()), sig, d.paySig);
    }

    function test_claim_refusals_come_in_their_order_and_by_name() public {
        IJobRegistry.Order memory order = orderOf("c");
        order.designated = rivalId;
        Draft memory d = signed(order);
        bytes32 jobId = idOf(client, "c");

        // Every field is wrong at first. Each step corrects the reported one.
        providers.setListed(providerId, false);
        providers.setAllowAllModels(providerId, false);
        vm.prank(operator);
        providers.requestCapacity(0, uint64(time() + 2), "");
        refuses(IJobRegistry.UnknownJob.selector, jobId, stranger, d.paySig);
        post(d);
        vm.warp(d.order.expiresAt + 1);
        refuses(IJobRegistry.NotOpen.selector, jobId, stranger, d.paySig);
        vm.warp(d.order.expiresAt);
        refuses(IJobRegistry.UnknownProvider.selector, jobId, stranger, d.paySig);
        refuses(IJobRegistry.NotListed.selector, jobId, operator, d.paySig);
        providers.setListed(providerId, true);
        refuses(IJobRegistry.ModelNotAllowed.selector, jobId, operator, d.paySig);
        providers.setModelAllowed(providerId, MODEL, true);
        refuses(IJobRegistry.NotDesignated.selector, jobId, operator, d.paySig);

        vm.assertEq(bytes32(jobs.claimRefusal(terms(jobId), rival)), bytes32(0));
        vm.prank(rival);
        jobs.claim(terms(jobId), 0, "", d.paySig);
        refuses(IJobRegistry.NotOpen.selector, jobId, operator, d.paySig);
    }

    function test_claim_above_capacity_is_refused_until_a_job_ends() public {
        vm.prank(operator);
        providers.requestCapacity(1, uint64(time() + 2), "");
        (bytes32 first,) = claimed();
        Draft memory d = draftOf("second");
        bytes32 second = post(d);
        refuses(IJobRegistry.AtCapacity.selector, second, operator, d.paySig);
        fail(first);
        claim(second, d.paySig);
    }

    function test_claim_of_a_cancelled_job_is_refused() public {
        (bytes32 jobId, Draft memory d) = posted();
        cancel(jobId);
        refuses(IJobRegistry.NotOpen.selector, jobId, operator, d.paySig);
    }

    function test_claim_in_the_last_second_of_the_order_collects() public {
        (bytes32 jobId, Draft memory d) = posted();
        vm.warp(d.order.expiresAt);
        claim(jobId, d.paySig);
        vm.assertEq(jobs.escrowed(), d.amount);
    }

    function test_claim_after_the_payment_was_withdrawn_is_refused_and_changes_nothing() public {
        (bytes32 jobId, Draft memory d) = posted();
        cancelAuthorization(CLIENT_KEY, jobId);
        refusesPayment(jobId, d.paySig);
    }

    function test_claim_after_the_money_went_elsewhere_is_refused() public {
        (bytes32 jobId, Draft memory d) = posted();
        uint256 all = token.balanceOf(client);
        vm.prank(client);
        token.transfer(stranger, all);
        refusesPayment(jobId, d.paySig);
    }

    function test_claim_with_another_payment_signature_is_refused() public {
        (bytes32 jobId, Draft memory d) = posted();
        bytes[] memory wrong = malformed(d.paySig);
        for (uint256 i = 0; i < wrong.length; ++i) {
            refusesPayment(jobId, wrong[i]);
        }
        refusesPayment(jobId, "");
        refusesPayment(jobId, draftOf("other").paySig);
    }

    function test_claim_while_the_token_is_paused_or_the_owner_shut_out_is_refused() public {
        (bytes32 jobId, Draft memory d) = posted();
        token.pause();
        refusesPayment(jobId, d.paySig);
        token.unpause();
        token.setBlacklisted(client, true);
        refusesPayment(jobId, d.paySig);
        token.setBlacklisted(client, false);
        claim(jobId, d.paySig);
    }

    function test_claim_while_paused_is_refused() public {
        (bytes32 jobId, Draft memory d) = posted();
        jobs.pause();
        vm.prank(operator);
        vm.expectRevert(Pausable.EnforcedPause.selector);
        jobs.claim(terms(jobId), 0, "", d.paySig);
    }

    function test_claim_is_paid_on_the_terms_of_the_post_whatever_the_fees_are_now() public {
        (bytes32 jobId, Draft memory d) = posted();
        jobs.setFees(2000, 1e9);
        claim(jobId, d.paySig);
        vm.assertEq(jobs.escrowed(), d.amount);
    }

    function claimAs(address sender, bytes32 jobId, uint64 issuedAt, bytes memory sig, bytes memory paySig) private {
        vm.prank(sender);
        jobs.claim(terms(jobId), issuedAt, sig, paySig);
    }

    /// The view and the op return the same answer.
    function refuses(bytes4 refusal, bytes32 jobId, address account, bytes memory paySig) private {
        vm.assertEq(bytes32(jobs.claimRefusal(terms(jobId), account)), bytes32(refusal));
        vm.prank(account);
        vm.expectRevert(refusal);
        jobs.claim(terms(jobId), 0, "", paySig);
    }

    function refusesPayment(bytes32 jobId, bytes memory paySig) private {
        vm.prank(operator);
        vm.expectRevert(paySig.length == 65 ? IJobRegistry.PaymentRefused.selector : IJobRegistry.InvalidPaymentSignature.selector);
        jobs.claim(terms(jobId), 0, "", paySig);
        assertState(jobId, IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
        vm.assertEq(jobs.escrowed(), 0);
        vm.assertEq(providers.provider(providerId).activeJobs, 0);
    }
}
