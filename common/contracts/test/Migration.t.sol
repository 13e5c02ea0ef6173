// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {JobRegistry} from "../src/JobRegistry.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IProviderRegistry} from "../src/interfaces/IProviderRegistry.sol";
import {World} from "./World.sol";

/// The steps of docs/contributors/contracts.md for replacing a job registry, with jobs open, claimed and credited.
contract MigrationTest is World {
    function test_job_registry_is_replaced_with_jobs_open_claimed_and_credited() public {
        JobRegistry old = jobs;
        Draft memory open = draftOf("open");
        Draft memory held = draftOf("held");
        Draft memory late = draftOf("late");
        Draft memory refused = draftOf("refused");
        bytes32 openId = post(open);
        (bytes32 heldId, bytes32 lateId, bytes32 refusedId) = (post(held), post(late), post(refused));
        claim(heldId, held.paySig);
        claim(lateId, late.paySig);
        claim(refusedId, refused.paySig);
        token.setBlacklisted(client, true);
        fail(refusedId); // the token rejects the refund, which becomes a credit
        token.setBlacklisted(client, false);

        // 1. Pause the old registry: no more posts and claims.
        old.pause();
        vm.prank(operator);
        vm.expectRevert(Pausable.EnforcedPause.selector);
        old.claim(terms(openId), 0, "", open.paySig);

        // 2. The replacement is rejected until every claimed job has ended.
        JobRegistry next =
            new JobRegistry(address(this), address(token), address(providers), treasury, MOST_GAS_FEE);
        vm.expectRevert(IProviderRegistry.JobsActive.selector);
        providers.setJobRegistry(address(next));
        settle(heldId, 1000); // while paused
        vm.expectRevert(IProviderRegistry.JobsActive.selector);
        providers.setJobRegistry(address(next));
        vm.warp(START + SLA + 1);
        old.reclaim(terms(lateId)); // at most one window after the pause, by anyone
        vm.assertEq(old.escrowed(), 0);

        // 3. Replace the registry. Reputation, grace and capacity stay.
        uint16 reputation = providers.provider(providerId).reputation;
        providers.setJobRegistry(address(next));
        vm.assertEq(providers.provider(providerId).reputation, reputation);
        vm.assertEq(providers.provider(providerId).activeJobs, 0);

        // The old registry pays credits and the treasury's shares, paused or not.
        vm.assertEq(old.credit(client), refused.amount);
        old.withdraw(client);
        old.withdraw(treasury);
        vm.assertEq(token.balanceOf(address(old)), 0);

        // An open job is never claimed again. Its owner cancels it, or it expires. No payment was collected for it.
        old.unpause();
        vm.prank(operator);
        vm.expectRevert(IProviderRegistry.NotJobRegistry.selector);
        old.claim(terms(openId), 0, "", open.paySig);
        cancel(openId);
        assertState(openId, IJobRegistry.State.Cancelled, IJobRegistry.EndedBecause.CancelledByOwner);

        // The new registry works, and rejects signatures for the old one.
        next.setModel(MODEL, "acme/word-mill-7b", true, "acme", "{}");
        next.setSla(SLA, true);
        next.setFees(FEE_BPS, GAS_FEE);
        next.setRelayer(relayer, true);
        Draft memory again = draftOf("open");
        vm.prank(relayer);
        vm.expectRevert(IJobRegistry.InvalidOrderSignature.selector);
        next.post(again.order, again.owner, again.amount, again.taskCid, again.orderSig, again.paySig);
        jobs = next;
        Draft memory fresh = draftOf("fresh");
        bytes32 freshId = post(fresh);
        claim(freshId, fresh.paySig);
        settle(freshId, 1);
        assertState(freshId, IJobRegistry.State.Settled, IJobRegistry.EndedBecause.Settled);
    }
}
