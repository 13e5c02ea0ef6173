// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IRelayed} from "../src/interfaces/IRelayed.sol";
import {World} from "./World.sol";

/// A payout that the token rejects becomes a credit and blocks no other payout.
contract PayoutsTest is World {
    function test_settle_with_one_party_shut_out_pays_the_others_and_credits_it() public {
        address[2] memory parties = [client, operator];
        for (uint256 i = 0; i < 2; ++i) {
            uint256 snapshot = vm.snapshotState();
            (bytes32 jobId,) = claimed();
            uint256[2] memory before;
            for (uint256 j = 0; j < 2; ++j) {
                before[j] = token.balanceOf(parties[j]);
            }
            token.setBlacklisted(parties[i], true);
            settle(jobId, 1);
            for (uint256 j = 0; j < 2; ++j) {
                uint256 paid = token.balanceOf(parties[j]) - before[j];
                vm.assertTrue(i == j ? paid == 0 : paid > 0, "paid");
                vm.assertTrue((i == j) == (jobs.credit(parties[j]) > 0), "credited");
            }
            vm.assertEq(token.balanceOf(address(jobs)), jobs.totalCredits());
            vm.assertEq(jobs.escrowed(), 0);
            vm.revertToState(snapshot);
        }
    }

    function test_every_exit_works_while_the_token_is_paused() public {
        Draft memory d = draftOf("settle");
        bytes32 settled = post(d);
        claim(settled, d.paySig);
        d = draftOf("fail");
        bytes32 failed = post(d);
        claim(failed, d.paySig);
        d = draftOf("reclaim");
        bytes32 reclaimed = post(d);
        claim(reclaimed, d.paySig);
        token.pause();
        settle(settled, 1);
        fail(failed);
        vm.warp(START + SLA + 1);
        jobs.reclaim(terms(reclaimed));
        vm.assertEq(jobs.escrowed(), 0);
        vm.assertEq(jobs.totalCredits(), token.balanceOf(address(jobs)));
        vm.assertEq(jobs.totalCredits(), 3 * d.amount);
    }

    function test_credit_is_withdrawn_once_and_to_its_party_alone_whoever_sends_it() public {
        uint256 amount = creditTheClient();
        token.setBlacklisted(client, false);
        vm.expectEmit(address(jobs));
        emit IJobRegistry.CreditWithdrawn(client, amount);
        vm.prank(stranger);
        jobs.withdraw(client);
        vm.assertEq(token.balanceOf(client), 1e18);
        vm.assertEq(token.balanceOf(stranger), 0);
        vm.assertEq(jobs.totalCredits(), 0);
        vm.expectRevert(IJobRegistry.NothingToWithdraw.selector);
        jobs.withdraw(client);
    }

    function test_withdrawal_that_the_token_refuses_leaves_the_credit() public {
        uint256 amount = creditTheClient();
        vm.expectRevert(IJobRegistry.WithdrawalRefused.selector);
        jobs.withdraw(client);
        vm.assertEq(jobs.credit(client), amount);
        vm.assertEq(jobs.totalCredits(), amount);
    }

    function test_withdrawal_without_a_credit_is_refused() public {
        vm.expectRevert(IJobRegistry.NothingToWithdraw.selector);
        jobs.withdraw(client);
        creditTheClient();
        vm.prank(client);
        vm.expectRevert(IJobRegistry.NothingToWithdraw.selector);
        jobs.withdraw(stranger);
    }

    function test_payout_with_little_gas_reverts_rather_than_becoming_a_credit() public {
        (bytes32 jobId,) = claimed();
        vm.prank(operator);
        vm.expectRevert(IRelayed.CallStarved.selector);
        jobs.settle{gas: 260_000}(terms(jobId), 1, 0, CID, "");
        settle(jobId, 1);
        vm.assertEq(jobs.totalCredits(), jobs.credit(treasury));
    }

    function test_settle_at_any_gas_limit_pays_everything_or_reverts(uint32 gasLimit) public {
        (bytes32 jobId,) = claimed();
        vm.prank(operator);
        try jobs.settle{gas: bound(gasLimit, 21_000, 700_000)}(terms(jobId), 1, 0, CID, "") {
            assertState(jobId, IJobRegistry.State.Settled, IJobRegistry.EndedBecause.Settled);
        } catch {
            assertState(jobId, IJobRegistry.State.Claimed, IJobRegistry.EndedBecause.NotEnded);
        }
        vm.assertEq(jobs.totalCredits(), jobs.credit(treasury));
    }

    function creditTheClient() private returns (uint256 amount) {
        (bytes32 jobId, Draft memory d) = claimed();
        token.setBlacklisted(client, true);
        vm.expectEmit(address(jobs));
        emit IJobRegistry.PayoutCredited(jobId, client, d.amount);
        fail(jobId);
        vm.assertEq(jobs.credit(client), d.amount);
        return d.amount;
    }
}
