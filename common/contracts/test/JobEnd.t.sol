// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {World} from "./World.sol";

contract JobEndTest is World {
    // --- settle ---

    function test_settle_pays_provider_treasury_and_owner_to_the_unit() public {
        (bytes32 jobId, Draft memory d) = claimed();
        uint256 clientBefore = token.balanceOf(client);
        uint256 cost = 2000 + 6 * 100; // rates 2 and 6 per unit, 1000 units in, 100 of 4096 units out
        uint256 share = cost * FEE_BPS / 10_000 + GAS_FEE;
        vm.expectEmit(address(jobs));
        emit IJobRegistry.JobSettled(jobId, providerId, 100, cost, share, d.amount - cost - share, CID);
        settle(jobId, 100);

        assertState(jobId, IJobRegistry.State.Settled, IJobRegistry.EndedBecause.Settled);
        vm.assertEq(token.balanceOf(operator), cost);
        vm.assertEq(jobs.credit(treasury), share); // the treasury collects its shares together
        vm.assertEq(token.balanceOf(client), clientBefore + d.amount - cost - share);
        vm.assertEq(token.balanceOf(address(jobs)), share);
        vm.assertEq(jobs.totalCredits(), share);
        vm.assertEq(jobs.escrowed(), 0);
        vm.assertEq(providers.provider(providerId).activeJobs, 0);
        vm.assertEq(providers.provider(providerId).reputation, 505);
    }

    function test_settle_at_every_unit_pays_the_cap() public {
        (bytes32 jobId, Draft memory d) = claimed();
        settle(jobId, d.order.unitsOut);
        vm.assertEq(token.balanceOf(operator), capOf(d.order));
    }

    function test_settle_pays_the_operator_whoever_sends_it() public {
        (bytes32 jobId,) = claimed();
        bytes memory sig = settleSig(PROVIDER_KEY, jobId, 5, uint64(time()));
        vm.prank(relayer);
        jobs.settle(terms(jobId), 5, uint64(time()), CID, sig);
        vm.assertEq(token.balanceOf(operator), 2030);
    }

    function test_settle_by_a_stranger_with_the_signature_is_refused_because_it_could_name_another_cid() public {
        (bytes32 jobId,) = claimed();
        bytes memory sig = settleSig(PROVIDER_KEY, jobId, 5, uint64(time()));
        vm.prank(stranger);
        vm.expectRevert(IJobRegistry.NotRelayer.selector);
        jobs.settle(terms(jobId), 5, uint64(time()), CID, sig);
    }

    function test_settle_outside_the_signatures_window_is_stale() public {
        (bytes32 jobId,) = claimed();
        bytes memory sig = settleSig(PROVIDER_KEY, jobId, 5, uint64(START));
        vm.warp(START + 601);
        vm.prank(relayer);
        vm.expectRevert(IJobRegistry.StaleOp.selector);
        jobs.settle(terms(jobId), 5, uint64(START), CID, sig);
    }

    function test_settle_with_a_malformed_signature_is_refused() public {
        (bytes32 jobId,) = claimed();
        bytes[] memory wrong = malformed(settleSig(PROVIDER_KEY, jobId, 5, uint64(START)));
        for (uint256 i = 0; i < wrong.length; ++i) {
            vm.prank(relayer);
            vm.expectRevert(IJobRegistry.InvalidSignature.selector);
            jobs.settle(terms(jobId), 5, uint64(START), CID, wrong[i]);
        }
    }

    function test_settle_of_more_units_than_signed_for_is_not_the_claimers() public {
        (bytes32 jobId,) = claimed();
        bytes memory sig = settleSig(PROVIDER_KEY, jobId, 5, uint64(START));
        vm.prank(relayer);
        vm.expectRevert(IJobRegistry.NotTheClaimer.selector);
        jobs.settle(terms(jobId), 6, uint64(START), CID, sig);
    }

    function test_settle_refusals_by_name() public {
        refusesSettle(IJobRegistry.UnknownJob.selector, "none", operator, 1, CID);
        (bytes32 jobId, Draft memory d) = posted();
        refusesSettle(IJobRegistry.NotClaimed.selector, jobId, operator, 1, CID);
        claim(jobId, d.paySig);
        refusesSettle(IJobRegistry.NotTheClaimer.selector, jobId, rival, 1, CID);
        refusesSettle(IJobRegistry.NotTheClaimer.selector, jobId, stranger, 1, CID);
        refusesSettle(IJobRegistry.TooManyUnits.selector, jobId, operator, d.order.unitsOut + 1, CID);
        refusesSettle(IJobRegistry.InvalidCid.selector, jobId, operator, 1, "");
        refusesSettle(IJobRegistry.InvalidCid.selector, jobId, operator, 1, string(new bytes(129)));
        vm.warp(START + SLA + 1);
        refusesSettle(IJobRegistry.SlaExpired.selector, jobId, operator, 1, CID);
        jobs.reclaim(terms(jobId));
        refusesSettle(IJobRegistry.NotClaimed.selector, jobId, operator, 1, CID);
    }

    // --- fail and reclaim ---

    function test_prompt_fail_refunds_everything_and_is_excused() public {
        (bytes32 jobId,) = claimed();
        vm.expectEmit(address(jobs));
        emit IJobRegistry.JobFailed(jobId, providerId);
        fail(jobId);
        assertState(jobId, IJobRegistry.State.Cancelled, IJobRegistry.EndedBecause.FailedByProvider);
        assertRefunded();
        vm.assertEq(providers.provider(providerId).reputation, 500);
        vm.assertEq(providers.provider(providerId).grace, 20);
    }

    function test_fail_is_sent_by_anyone_with_the_claimers_signature_inside_the_window() public {
        (bytes32 jobId,) = claimed();
        bytes memory sig = opSig(PROVIDER_KEY, "Fail", jobId, uint64(START));
        vm.warp(START + 601);
        vm.expectRevert(IJobRegistry.StaleOp.selector);
        jobs.fail(terms(jobId), uint64(START), sig);
        vm.warp(START + 600);
        vm.prank(stranger);
        jobs.fail(terms(jobId), uint64(START), sig);
        assertRefunded();
    }

    function test_fail_refusals_by_name() public {
        refusesFail(IJobRegistry.UnknownJob.selector, "none", operator);
        (bytes32 jobId, Draft memory d) = posted();
        refusesFail(IJobRegistry.NotClaimed.selector, jobId, operator);
        claim(jobId, d.paySig);
        refusesFail(IJobRegistry.NotTheClaimer.selector, jobId, rival);
        bytes memory sig = opSig(PROVIDER_KEY, "Claim", jobId, uint64(START));
        vm.expectRevert(IJobRegistry.NotTheClaimer.selector);
        jobs.fail(terms(jobId), uint64(START), sig);
        vm.expectRevert(IJobRegistry.InvalidSignature.selector);
        jobs.fail(terms(jobId), uint64(START), highS(sig));
        fail(jobId);
        refusesFail(IJobRegistry.NotClaimed.selector, jobId, operator);
    }

    function test_reclaim_by_anyone_refunds_everything_and_lowers_the_reputation() public {
        (bytes32 jobId,) = claimed();
        vm.warp(START + SLA + 1);
        vm.expectEmit(address(jobs));
        emit IJobRegistry.JobReclaimed(jobId, providerId);
        vm.prank(stranger);
        jobs.reclaim(terms(jobId));
        assertState(jobId, IJobRegistry.State.Cancelled, IJobRegistry.EndedBecause.Reclaimed);
        assertRefunded();
        vm.assertEq(providers.provider(providerId).reputation, 400);
    }

    function test_reclaim_of_a_job_that_is_not_claimed_is_refused() public {
        vm.expectRevert(IJobRegistry.UnknownJob.selector);
        jobs.reclaim(terms("none"));
        (bytes32 jobId,) = posted();
        vm.expectRevert(IJobRegistry.NotClaimed.selector);
        jobs.reclaim(terms(jobId));
    }

    // --- races: two calls in one second, in either order; exactly one succeeds ---

    function test_settle_against_reclaim_has_one_winner_in_each_second_and_order() public {
        (bytes32 jobId,) = claimed();
        for (uint256 late = 0; late < 2; ++late) {
            vm.warp(START + SLA + late);
            bool settleWins = late == 0;
            for (uint256 first = 0; first < 2; ++first) {
                uint256 snapshot = vm.snapshotState();
                uint256 won = 0;
                for (uint256 turn = 0; turn < 2; ++turn) {
                    won += (first + turn) % 2 == 0 ? trySettle(jobId) : tryReclaim(jobId);
                }
                vm.assertEq(won, 1, "winners");
                assertState(
                    jobId,
                    settleWins ? IJobRegistry.State.Settled : IJobRegistry.State.Cancelled,
                    settleWins ? IJobRegistry.EndedBecause.Settled : IJobRegistry.EndedBecause.Reclaimed
                );
                vm.revertToState(snapshot);
            }
        }
    }

    function test_claim_against_cancel_is_won_by_the_first() public {
        (bytes32 jobId, Draft memory d) = posted();
        vm.warp(d.order.expiresAt);
        uint256 snapshot = vm.snapshotState();
        claim(jobId, d.paySig);
        vm.prank(client);
        vm.expectRevert(IJobRegistry.NotCancellable.selector);
        jobs.cancel(terms(jobId), 0, "");
        vm.revertToState(snapshot);
        cancel(jobId);
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.NotOpen.selector);
        jobs.claim(terms(jobId), 0, "", d.paySig);
        vm.assertEq(jobs.escrowed(), 0);
    }

    // --- cancel ---

    function test_cancel_of_an_open_job_ends_it() public {
        (bytes32 jobId,) = posted();
        vm.expectEmit(address(jobs));
        emit IJobRegistry.JobCancelled(jobId);
        cancel(jobId);
        assertState(jobId, IJobRegistry.State.Cancelled, IJobRegistry.EndedBecause.CancelledByOwner);
    }

    function test_cancel_ends_a_job_up_to_its_expiry_and_changes_nothing_after_it() public {
        (bytes32 jobId, Draft memory d) = posted();
        uint256 open = vm.snapshotState();
        vm.warp(d.order.expiresAt);
        cancel(jobId);
        assertState(jobId, IJobRegistry.State.Cancelled, IJobRegistry.EndedBecause.CancelledByOwner);

        vm.revertToState(open);
        vm.warp(d.order.expiresAt + 1);
        vm.recordLogs();
        cancel(jobId);
        vm.assertEq(vm.getRecordedLogs().length, 0);
        // an index reads the job as expired
        assertState(jobId, IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
    }

    function test_cancel_is_sent_by_anyone_with_the_owners_signature_inside_the_window() public {
        (bytes32 jobId,) = posted();
        bytes memory sig = opSig(CLIENT_KEY, "Cancel", jobId, uint64(START));
        vm.warp(START + 601);
        vm.expectRevert(IJobRegistry.StaleOp.selector);
        jobs.cancel(terms(jobId), uint64(START), sig);
        vm.warp(START + 600);
        jobs.cancel(terms(jobId), uint64(START), sig);
        assertState(jobId, IJobRegistry.State.Cancelled, IJobRegistry.EndedBecause.CancelledByOwner);
    }

    function test_cancel_with_any_other_signature_is_not_the_owners() public {
        (bytes32 jobId,) = posted();
        bytes[] memory wrong = malformed(opSig(CLIENT_KEY, "Cancel", jobId, uint64(START)));
        for (uint256 i = 0; i < wrong.length; ++i) {
            vm.expectRevert(IJobRegistry.NotTheOwner.selector);
            jobs.cancel(terms(jobId), uint64(START), wrong[i]);
            vm.expectRevert(IJobRegistry.NotTheOwner.selector);
            jobs.cancel(terms("none"), uint64(START), wrong[i]);
        }
        bytes memory foreign = opSig(STRANGER_KEY, "Cancel", jobId, 0); // stale as well, but the owner is checked first
        vm.expectRevert(IJobRegistry.NotTheOwner.selector);
        jobs.cancel(terms(jobId), 0, foreign);
        vm.prank(stranger);
        vm.expectRevert(IJobRegistry.NotTheOwner.selector);
        jobs.cancel(terms(jobId), uint64(START), "");
    }

    function test_cancel_of_an_ended_job_succeeds_and_changes_nothing() public {
        (bytes32 jobId,) = claimed();
        settle(jobId, 1);
        vm.recordLogs();
        cancel(jobId);
        vm.assertEq(vm.getRecordedLogs().length, 0);
        assertState(jobId, IJobRegistry.State.Settled, IJobRegistry.EndedBecause.Settled);
    }

    function test_cancel_of_a_claimed_job_is_stale_before_it_is_not_cancellable() public {
        (bytes32 jobId,) = claimed();
        bytes memory sig = opSig(CLIENT_KEY, "Cancel", jobId, uint64(START + 601));
        vm.expectRevert(IJobRegistry.StaleOp.selector);
        jobs.cancel(terms(jobId), uint64(START + 601), sig);
        vm.warp(START + 1);
        vm.expectRevert(IJobRegistry.NotCancellable.selector);
        jobs.cancel(terms(jobId), uint64(START + 601), sig);
    }

    // --- a pause never blocks exits ---

    function test_paused_registry_still_settles_fails_reclaims_and_cancels() public {
        bytes32[4] memory ids;
        for (uint256 i = 0; i < 4; ++i) {
            Draft memory d = draftOf(bytes32(i));
            ids[i] = post(d);
            if (i < 3) claim(ids[i], d.paySig);
        }
        jobs.pause();
        settle(ids[0], 1);
        fail(ids[1]);
        cancel(ids[3]);
        vm.warp(START + SLA + 1);
        jobs.reclaim(terms(ids[2]));
        vm.assertEq(jobs.escrowed(), 0);
        jobs.withdraw(treasury);
        vm.assertEq(token.balanceOf(address(jobs)), 0);
    }

    function trySettle(bytes32 jobId) private returns (uint256) {
        vm.prank(operator);
        try jobs.settle(terms(jobId), 1, 0, CID, "") {
            return 1;
        } catch {
            return 0;
        }
    }

    function tryReclaim(bytes32 jobId) private returns (uint256) {
        try jobs.reclaim(terms(jobId)) {
            return 1;
        } catch {
            return 0;
        }
    }

    function refusesSettle(bytes4 refusal, bytes32 jobId, address account, uint32 completionTok, string memory cid)
        private
    {
        vm.prank(account);
        vm.expectRevert(refusal);
        jobs.settle(terms(jobId), completionTok, 0, cid, "");
    }

    function refusesFail(bytes4 refusal, bytes32 jobId, address account) private {
        vm.prank(account);
        vm.expectRevert(refusal);
        jobs.fail(terms(jobId), 0, "");
    }

    function assertRefunded() private view {
        vm.assertEq(token.balanceOf(client), 1e18);
        vm.assertEq(token.balanceOf(address(jobs)), 0);
        vm.assertEq(jobs.escrowed(), 0);
        vm.assertEq(providers.provider(providerId).activeJobs, 0);
    }
}
