// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {World} from "./World.sol";

contract JobPostTest is World {
    function test_post_by_relayer_opens_the_job_on_the_orders_terms() public {
        Draft memory d = draft();
        d.order.designated = rivalId;
        d = signed(d.order);
        bytes32 jobId = post(d);

        IJobRegistry.Job memory job = jobs.job(jobId);
        vm.assertEq(jobId, idOf(client, d.order.c));
        vm.assertEq(job.exists, true);
        vm.assertEq(job.providerId, 0);
        vm.assertEq(job.claimedAt, 0);
        assertState(jobId, IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
        vm.assertEq(token.balanceOf(address(jobs)), 0);
    }

    function test_post_event_carries_everything_that_an_index_needs() public {
        Draft memory d = draft();
        IJobRegistry.Order memory o = d.order;
        vm.expectEmit(address(jobs));
        emit IJobRegistry.JobPosted(
            idOf(client, o.c), client, o.modelId, o.c, o.slaSecs, o.rateIn, o.rateOut, o.unitsIn, o.unitsOut,
            o.designated, o.expiresAt, FEE_BPS, GAS_FEE, CID, d.paySig
        );
        post(d);
    }

    function test_post_by_the_owner_needs_no_relayer() public {
        bytes32 jobId = postAs(client, draft());
        assertState(jobId, IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
    }

    function test_post_by_a_stranger_is_refused_because_it_could_name_another_cid() public {
        refuses(IJobRegistry.NotRelayer.selector, stranger, draft());
    }

    function test_post_twice_is_a_duplicate_in_every_state() public {
        (bytes32 jobId, Draft memory d) = posted();
        refuses(IJobRegistry.DuplicateJob.selector, d);
        cancel(jobId);
        refuses(IJobRegistry.DuplicateJob.selector, d);
    }

    function test_post_of_a_disabled_or_unknown_model_is_refused() public {
        jobs.setModel(MODEL, "acme/word-mill-7b", false, "acme", "{}");
        refuses(IJobRegistry.ModelNotEnabled.selector, draft());
        IJobRegistry.Order memory order = orderOf("c");
        order.modelId = MODEL + 1;
        refuses(IJobRegistry.ModelNotEnabled.selector, signed(order));
    }

    function test_post_with_an_sla_that_is_not_allowed_is_refused() public {
        IJobRegistry.Order memory order = orderOf("c");
        order.slaSecs = SLA + 1;
        refuses(IJobRegistry.SlaNotAllowed.selector, signed(order));
    }

    function test_post_expiry_is_after_now_and_at_most_a_day_and_a_quarter_of_an_hour_ahead() public {
        IJobRegistry.Order memory order = orderOf("c");
        order.expiresAt = uint64(time());
        refuses(IJobRegistry.OrderExpired.selector, signed(order));
        order.expiresAt = uint64(time() + 87_301);
        refuses(IJobRegistry.ExpiryTooFar.selector, signed(order));
        order.expiresAt = type(uint64).max;
        Draft memory d = draft();
        d.order = order;
        refuses(IJobRegistry.ExpiryTooFar.selector, d);
        order.expiresAt = uint64(time() + 87_300);
        post(signed(order));
        order.c = "another";
        order.expiresAt = uint64(time() + 1);
        post(signed(order));
    }

    function test_post_with_a_cap_above_128_bits_is_refused() public {
        IJobRegistry.Order memory order = orderOf("c");
        (order.rateIn, order.unitsIn) = (type(uint128).max, 1_000_001);
        refuses(IJobRegistry.CapOverflow.selector, signed(order));
        (order.rateOut, order.unitsIn, order.unitsOut) = (type(uint128).max, type(uint32).max, type(uint32).max);
        refuses(IJobRegistry.CapOverflow.selector, signed(order));
    }

    function test_post_with_the_largest_cap_is_accepted() public {
        IJobRegistry.Order memory order = orderOf("c");
        (order.rateIn, order.unitsIn, order.rateOut) = (type(uint128).max, 1_000_000, 0);
        token.mint(client, type(uint136).max);
        post(signed(order));
    }

    function test_post_for_another_amount_than_cap_and_fees_is_refused() public {
        IJobRegistry.Order memory order = orderOf("c");
        refuses(IJobRegistry.WrongAmount.selector, signedFor(order, amountOf(order) + 1));
        refuses(IJobRegistry.WrongAmount.selector, signedFor(order, amountOf(order) - 1));
        Draft memory d = signed(order);
        jobs.setFees(FEE_BPS, GAS_FEE + 1);
        refuses(IJobRegistry.WrongAmount.selector, d);
    }

    function test_post_with_a_malformed_or_foreign_order_signature_is_refused() public {
        Draft memory d = draft();
        bytes[] memory wrong = malformed(d.orderSig);
        for (uint256 i = 0; i < wrong.length; ++i) {
            d.orderSig = wrong[i];
            refuses(IJobRegistry.InvalidOrderSignature.selector, d);
        }
        d.orderSig = "";
        refuses(IJobRegistry.InvalidOrderSignature.selector, client, d);
        d.orderSig = sign(STRANGER_KEY, orderDigest(d.order));
        refuses(IJobRegistry.InvalidOrderSignature.selector, d);
    }

    function test_post_for_nobody_is_refused_although_bad_signatures_recover_to_nobody() public {
        Draft memory d = draft();
        d.owner = address(0);
        d.orderSig = new bytes(65);
        refuses(IJobRegistry.InvalidOrderSignature.selector, d);
    }

    function test_post_of_an_order_signed_for_another_chain_or_registry_is_refused() public {
        Draft memory d = draft();
        d.orderSig = sign(CLIENT_KEY, digestOf(domain("SVC Jobs", "2", address(asks)), orderHash(d.order)));
        refuses(IJobRegistry.InvalidOrderSignature.selector, d);
        d.orderSig = sign(CLIENT_KEY, digestOf(domain("SVC Jobs", "1", address(jobs)), orderHash(d.order)));
        refuses(IJobRegistry.InvalidOrderSignature.selector, d);
        d = draft();
        vm.chainId(block.chainid + 1);
        refuses(IJobRegistry.InvalidOrderSignature.selector, d);
    }

    function test_post_with_a_payment_signature_for_anything_else_is_refused() public {
        Draft memory d = draft();
        bytes[] memory wrong = malformed(d.paySig);
        for (uint256 i = 0; i < wrong.length; ++i) {
            d.paySig = wrong[i];
            refuses(IJobRegistry.InvalidPaymentSignature.selector, d);
        }
        bytes32 jobId = idOf(client, d.order.c);
        d.paySig = sign(STRANGER_KEY, paymentDigest(client, d.amount, d.order.expiresAt, jobId));
        refuses(IJobRegistry.InvalidPaymentSignature.selector, d);
        d.paySig = sign(CLIENT_KEY, paymentDigest(client, d.amount + 1, d.order.expiresAt, jobId));
        refuses(IJobRegistry.InvalidPaymentSignature.selector, d);
        d.paySig = sign(CLIENT_KEY, paymentDigest(client, d.amount, d.order.expiresAt - 1, jobId));
        refuses(IJobRegistry.InvalidPaymentSignature.selector, d);
        d.paySig = sign(CLIENT_KEY, paymentDigest(client, d.amount, d.order.expiresAt, "other"));
        refuses(IJobRegistry.InvalidPaymentSignature.selector, d);
    }

    function test_post_by_a_payer_with_code_is_refused_delegations_included() public {
        Draft memory d = draft();
        vm.etch(client, abi.encodePacked(hex"ef0100", address(token)));
        refuses(IJobRegistry.PayerHasCode.selector, d);
        vm.etch(client, hex"00");
        refuses(IJobRegistry.PayerHasCode.selector, d);
    }

    function test_post_with_a_spent_or_cancelled_authorisation_is_refused() public {
        Draft memory d = draft();
        cancelAuthorization(CLIENT_KEY, idOf(client, d.order.c));
        refuses(IJobRegistry.AuthorizationUsed.selector, d);
    }

    function test_post_without_the_whole_amount_in_the_wallet_is_refused() public {
        Draft memory d = draft();
        uint256 spare = token.balanceOf(client) - d.amount;
        vm.prank(client);
        token.transfer(stranger, spare + 1);
        refuses(IJobRegistry.InsufficientBalance.selector, d);
        vm.prank(stranger);
        token.transfer(client, 1);
        post(d);
    }

    function test_post_with_an_empty_or_overlong_cid_is_refused() public {
        Draft memory d = draft();
        d.taskCid = "";
        refuses(IJobRegistry.InvalidCid.selector, d);
        d.taskCid = string(new bytes(129));
        refuses(IJobRegistry.InvalidCid.selector, d);
        d.taskCid = string(new bytes(128));
        post(d);
    }

    function test_post_while_paused_is_refused() public {
        jobs.pause();
        refuses(Pausable.EnforcedPause.selector, draft());
        jobs.unpause();
        post(draft());
    }

    function test_unknown_job_reads_as_nothing() public view {
        vm.assertEq(jobs.job("none").exists, false);
        assertState("none", IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
    }

    function refuses(bytes4 refusal, Draft memory d) private {
        refuses(refusal, relayer, d);
    }

    function refuses(bytes4 refusal, address sender, Draft memory d) private {
        vm.prank(sender);
        vm.expectRevert(refusal);
        jobs.post(d.order, d.owner, d.amount, d.taskCid, d.orderSig, d.paySig);
    }
}
