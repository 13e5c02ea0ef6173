// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IProviderRegistry} from "../src/interfaces/IProviderRegistry.sol";
import {World} from "./World.sol";

/// The attacks in docs/contributors/contracts.md, "Reputation", with the same figures.
contract MechanismTest is World {
    uint16 private constant SAVED = 320; // the most grace that a provider can save: 16 fails

    // --- clients against a provider: broken payloads ---

    function test_prompt_fail_costs_grace_and_no_reputation() public {
        (bytes32 jobId,) = claimed();
        vm.warp(START + 300);
        vm.expectEmit(address(providers));
        emit IProviderRegistry.StandingSet(providerId, 500, 20);
        fail(jobId);
        assertStanding(500, 20);
    }

    function test_fail_a_second_after_the_window_costs_reputation_whatever_the_grace() public {
        (bytes32 jobId,) = claimed();
        vm.warp(START + 301);
        vm.expectEmit(address(providers));
        emit IProviderRegistry.StandingSet(providerId, 475, 40);
        fail(jobId);
        assertStanding(475, 40);
    }

    function test_reclaim_is_never_excused() public {
        (bytes32 jobId,) = claimed();
        vm.warp(START + SLA + 1);
        jobs.reclaim(terms(jobId));
        assertStanding(400, 40);
    }

    /// Before grace existed, this took a provider from 500 to 100 at no cost to the client.
    function test_sixteen_broken_orders_cost_an_established_provider_nothing() public {
        settleMany(56); // 40 + 280 points of grace; reputation 780
        assertStanding(780, SAVED);
        failMany(16);
        assertStanding(780, 0);
        failMany(1); // the seventeenth costs reputation
        assertStanding(755, 0);
    }

    function test_sixteen_broken_orders_cost_a_newcomer_fourteen_fails() public {
        failMany(16);
        assertStanding(500 - 14 * 25, 0);
    }

    /// With one broken order per four settled jobs, the provider never loses reputation.
    function test_one_broken_order_in_five_never_lowers_the_reputation() public {
        for (uint256 i = 0; i < 20; ++i) {
            settleMany(4);
            failMany(1);
        }
        assertStanding(900, 40);
    }

    // --- a provider against clients: claiming and failing to spoil open orders ---

    function test_squatting_costs_twenty_points_of_earned_grace_or_twenty_five_of_reputation_each() public {
        settleMany(4); // one excused fail for the provider, and 20 points' worth for the treasury
        vm.assertGe(jobs.credit(treasury), 20 * uint256(POINT_PRICE));
        failMany(3);
        assertStanding(520, 0);
        failMany(1);
        assertStanding(495, 0);
    }

    // --- a provider that orders from itself ---

    function test_order_of_the_operator_to_itself_earns_nothing() public {
        token.mint(operator, 1e12);
        for (uint256 i = 0; i < 100; ++i) {
            IJobRegistry.Order memory order = orderOf(keccak256(abi.encode("own", i)));
            order.designated = providerId;
            settle(claimedFor(PROVIDER_KEY, order), 1);
        }
        assertStanding(500, 40);
    }

    /// From 500 to 1000 used to take 100 orders and 0.15 tokens in gas fees. Now the admin sets the price.
    function test_reputation_from_a_second_purse_costs_the_treasurys_price_point_by_point() public {
        uint96 price = 1e6; // one token
        providers.setPointPrice(price);
        uint256 spent = 0;
        uint256 before = jobs.credit(treasury);
        for (uint256 i = 0; i < 100; ++i) {
            IJobRegistry.Order memory order = orderOf(keccak256(abi.encode("purse", i)));
            order.designated = providerId;
            (order.rateIn, order.rateOut) = (0, 1); // the lowest possible rates
            settle(claimedFor(CLIENT_KEY, order), 1);
        }
        spent = jobs.credit(treasury) - before;
        vm.assertEq(spent, 100 * (GAS_FEE + 0));
        assertStanding(500, 40); // 0.15 of a point
        for (uint256 i = 0; i < 10; ++i) {
            IJobRegistry.Order memory order = orderOf(keccak256(abi.encode("dear", i)));
            (order.rateIn, order.unitsIn) = (40e6 * 1e6, 1);
            settle(claimedFor(CLIENT_KEY, order), 0); // 40 tokens: a share of 1.0015
        }
        spent = jobs.credit(treasury) - before;
        uint256 gained = providers.provider(providerId).reputation - 500;
        vm.assertEq(gained, 10);
        vm.assertGe(spent, gained * price);
    }

    function test_gain_is_at_most_five_points_a_job_and_adds_up_from_parts(uint96 price, uint128 share, uint8 times)
        public
    {
        providers.setPointPrice(price);
        becomeJobRegistry();
        uint256 jobsDone = bound(times, 1, 20);
        for (uint256 i = 0; i < jobsDone; ++i) {
            providers.jobClaimed(operator, MODEL, true, 0);
            providers.jobSettled(providerId, operator, client, share);
        }
        uint256 gained = providers.provider(providerId).reputation - 500;
        vm.assertLe(gained, 5 * jobsDone);
        vm.assertLe(gained * price, share * jobsDone); // never more than was paid for
        if (share >= uint256(price) * 5) vm.assertEq(gained, 5 * jobsDone);
    }

    // --- other ways to extract money ---

    function test_claim_refuses_a_payer_that_got_code_since_the_post() public {
        (bytes32 jobId, Draft memory d) = posted();
        vm.etch(client, abi.encodePacked(hex"ef0100", address(token))); // a delegation (EIP-7702)
        vm.assertEq(bytes32(jobs.claimRefusal(terms(jobId), operator)), bytes32(0));
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.PayerHasCode.selector);
        jobs.claim(terms(jobId), 0, "", d.paySig);
        vm.etch(client, "");
        claim(jobId, d.paySig);
    }

    function test_open_job_of_a_disabled_model_is_claimed_by_nobody_until_it_is_enabled_again() public {
        (bytes32 jobId, Draft memory d) = posted();
        jobs.setModel(MODEL, "acme/word-mill-7b", false, "acme", "{}");
        vm.assertEq(
            bytes32(jobs.claimRefusal(terms(jobId), operator)), bytes32(IJobRegistry.ModelNotAllowed.selector)
        );
        vm.assertEq(bytes32(jobs.claimRefusal(terms(jobId), stranger)), bytes32(IJobRegistry.UnknownProvider.selector));
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.ModelNotAllowed.selector);
        jobs.claim(terms(jobId), 0, "", d.paySig);
        jobs.setModel(MODEL, "acme/word-mill-7b", true, "acme", "{}");
        claim(jobId, d.paySig);
        jobs.setModel(MODEL, "acme/word-mill-7b", false, "acme", "{}");
        settle(jobId, 1); // a claimed job can still be finished
    }

    /// Every field of the terms counts. Any other value is an unknown job.
    function test_terms_that_differ_in_anything_are_no_job(uint8 field, uint128 change) public {
        (bytes32 jobId, Draft memory d) = posted();
        IJobRegistry.Posted memory wrong = terms(jobId);
        change = uint128(bound(change, 1, type(uint16).max));
        unchecked {
            field %= 10;
            if (field == 0) wrong.order.modelId += uint32(change);
            if (field == 1) wrong.order.slaSecs += uint32(change);
            if (field == 2) wrong.order.rateIn += change;
            if (field == 3) wrong.order.rateOut += change;
            if (field == 4) wrong.order.unitsIn += uint32(change);
            if (field == 5) wrong.order.unitsOut += uint32(change);
            if (field == 6) wrong.order.designated += uint32(change);
            if (field == 7) wrong.order.expiresAt += uint64(change);
            if (field == 8) wrong.feeBps += uint16(change);
            if (field == 9) wrong.gasFee += change;
        }
        vm.assertEq(bytes32(jobs.claimRefusal(wrong, operator)), bytes32(IJobRegistry.UnknownJob.selector));
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.UnknownJob.selector);
        jobs.claim(wrong, 0, "", d.paySig);
        vm.prank(client);
        vm.expectRevert(IJobRegistry.UnknownJob.selector);
        jobs.cancel(wrong, 0, "");
        claim(jobId, d.paySig);
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.UnknownJob.selector);
        jobs.settle(wrong, 0, 0, CID, "");
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.UnknownJob.selector);
        jobs.fail(wrong, 0, "");
        vm.warp(START + 200_000);
        vm.expectRevert(IJobRegistry.UnknownJob.selector);
        jobs.reclaim(wrong);
        jobs.reclaim(terms(jobId));
    }

    // --- internal ---

    function settleMany(uint256 times) private {
        for (uint256 i = 0; i < times; ++i) {
            settle(claimedFor(CLIENT_KEY, orderOf(keccak256(abi.encode("good", ++_count)))), 1);
        }
    }

    function failMany(uint256 times) private {
        for (uint256 i = 0; i < times; ++i) {
            fail(claimedFor(CLIENT_KEY, orderOf(keccak256(abi.encode("bad", ++_count)))));
        }
    }

    uint256 private _count;

    function claimedFor(uint256 key, IJobRegistry.Order memory order) private returns (bytes32 jobId) {
        address owner = vm.addr(key);
        uint256 amount = amountOf(order);
        bytes memory paySig = sign(key, paymentDigest(owner, amount, order.expiresAt, idOf(owner, order.c)));
        jobId = post(Draft(order, owner, amount, CID, sign(key, orderDigest(order)), paySig));
        claim(jobId, paySig);
    }

    function assertStanding(uint256 reputation, uint256 grace) private view {
        IProviderRegistry.Provider memory provider = providers.provider(providerId);
        vm.assertEq(provider.reputation, reputation, "reputation");
        vm.assertEq(provider.grace, grace, "grace");
        vm.assertEq(provider.activeJobs, 0);
    }
}
