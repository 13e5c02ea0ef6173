// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IAskRegistry} from "../src/interfaces/IAskRegistry.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IProviderRegistry} from "../src/interfaces/IProviderRegistry.sol";
import {IRelayed} from "../src/interfaces/IRelayed.sol";
import {Vm} from "./Check.sol";
import {World} from "./World.sol";

/// An operator contract, which can claim and fail many jobs in one call.
contract SpoilingOperator {
    function register(IProviderRegistry providers) external returns (uint32) {
        return providers.register();
    }

    /// Claim and fail each job. Return the number of spoiled jobs.
    function spoil(IJobRegistry jobs, IJobRegistry.Posted[] calldata posted, bytes[] calldata paySigs)
        external
        returns (uint256 spoiled)
    {
        for (uint256 i = 0; i < posted.length; ++i) {
            try jobs.claim(posted[i], 0, "", paySigs[i]) {
                jobs.fail(posted[i], 0, "");
                ++spoiled;
            } catch {}
        }
    }
}

/// A job registry that belongs to another market.
contract ForeignRegistry {
    address public providers;

    constructor(address providerRegistry) {
        providers = providerRegistry;
    }
}

/// Each test runs one attack, and shows that it fails or that the attacker pays for it.
contract AttacksTest is World {
    /// The owner sees the provider's signature for an offer, posts another order with the same `c`, and claims it.
    function test_owner_cannot_claim_with_a_signature_given_for_other_terms() public {
        IJobRegistry.Order memory cheap = orderOf("c");
        (cheap.rateIn, cheap.rateOut) = (0, 0);
        Draft memory swapped = signed(cheap);
        bytes32 jobId = idOf(client, "c");
        bytes memory sig = opSig(PROVIDER_KEY, "Claim", jobId, uint64(time()));
        postAs(client, swapped);
        vm.prank(client);
        vm.expectRevert(IJobRegistry.NotRelayer.selector);
        jobs.claim(terms(jobId), uint64(time()), sig, swapped.paySig);
        assertState(jobId, IJobRegistry.State.Open, IJobRegistry.EndedBecause.NotEnded);
    }

    /// With a capacity of one, an operator claims and fails any number of open orders in one call.
    function test_operator_spoils_few_orders_and_is_delisted() public {
        SpoilingOperator spoiler = new SpoilingOperator();
        uint32 id = spoiler.register(providers);
        providers.setListed(id, true);
        providers.setAllowAllModels(id, true);
        IJobRegistry.Posted[] memory open = new IJobRegistry.Posted[](200);
        bytes[] memory paySigs = new bytes[](200);
        for (uint256 i = 0; i < 200; ++i) {
            Draft memory d = draftOf(bytes32(i + 1));
            open[i] = terms(post(d));
            paySigs[i] = d.paySig;
        }
        uint256 spoiled = spoiler.spoil(jobs, open, paySigs);
        vm.assertEq(spoiled, 19); // two excused, sixteen down to the floor, one more
        vm.assertEq(providers.provider(id).reputation, 100);
        vm.assertEq(providers.provider(id).listed, false);
    }

    /// An admin that registers a plain account as job registry could set reputations from it.
    function test_job_registry_must_belong_to_this_provider_registry() public {
        address foreign = address(new ForeignRegistry(operator));
        address[3] memory wrong = [operator, stranger, foreign];
        for (uint256 i = 0; i < wrong.length; ++i) {
            vm.expectRevert(bytes4(keccak256("InvalidJobRegistry()")));
            providers.setJobRegistry(wrong[i]);
        }
        vm.assertEq(providers.jobRegistry(), address(jobs));
    }

    /// A fail after the deadline delays the client as long as a reclaim, so it costs the same.
    function test_fail_after_the_deadline_costs_what_a_reclaim_costs() public {
        (bytes32 jobId, Draft memory d) = claimed();
        vm.warp(START + SLA);
        uint256 inTime = vm.snapshotState();
        fail(jobId);
        vm.assertEq(providers.provider(providerId).reputation, 475);
        vm.revertToState(inTime);
        vm.warp(START + SLA + 1);
        fail(jobId);
        vm.assertEq(providers.provider(providerId).reputation, 400);
        assertState(jobId, IJobRegistry.State.Cancelled, IJobRegistry.EndedBecause.FailedByProvider);
        vm.assertEq(token.balanceOf(client), 1e18);
        vm.assertEq(d.amount, terms(jobId).gasFee + capOf(d.order) + capOf(d.order) * FEE_BPS / 10_000);
    }

    function test_late_fail_still_needs_the_claimer() public {
        (bytes32 jobId,) = claimed();
        vm.warp(START + SLA + 1);
        vm.prank(rival);
        vm.expectRevert(IJobRegistry.NotTheClaimer.selector);
        jobs.fail(terms(jobId), 0, "");
    }

    /// A relayer withholds an order. The owner cancels the job id before anyone posts the order.
    function test_owner_ends_an_id_that_was_never_posted() public {
        Draft memory d = draft();
        bytes32 jobId = idOf(client, d.order.c);
        vm.prank(client);
        (bool done,) = address(jobs).call(abi.encodeWithSignature("discard(bytes32)", d.order.c));
        vm.assertTrue(done);
        assertState(jobId, IJobRegistry.State.Cancelled, IJobRegistry.EndedBecause.CancelledByOwner);
        vm.prank(relayer);
        vm.expectRevert(IJobRegistry.DuplicateJob.selector);
        jobs.post(d.order, d.owner, d.amount, d.taskCid, d.orderSig, d.paySig);
        // With the same `c`, another account has a different job id.
        vm.prank(stranger);
        (done,) = address(jobs).call(abi.encodeWithSignature("discard(bytes32)", d.order.c));
        vm.assertTrue(done);
        vm.assertEq(jobs.job(idOf(stranger, d.order.c)).exists, true);
    }

    function test_discard_ends_no_posted_job() public {
        (bytes32 jobId, Draft memory d) = posted();
        vm.prank(client);
        (bool done, bytes memory why) =
            address(jobs).call(abi.encodeWithSignature("discard(bytes32)", d.order.c));
        vm.assertTrue(!done && bytes4(why) == IJobRegistry.DuplicateJob.selector);
        claim(jobId, d.paySig);
    }

    /// A key that a provider used before leaving is replayed after the provider registered again.
    function test_ops_signed_before_a_registration_do_not_count_after_it() public {
        bytes32 typeHash = keccak256("SetIdentity(bytes32 boxKey,bytes evidence,uint64 issuedAt)");
        uint64 long = uint64(START - 30 days);
        bytes32 structHash = keccak256(abi.encode(typeHash, bytes32("old box"), keccak256(""), long));
        bytes memory old = sign(PROVIDER_KEY, digestOf(domain("SVC Providers", "2", address(providers)), structHash));
        typeHash = keccak256("RequestCapacity(uint32 n,uint64 issuedAt)");
        structHash = keccak256(abi.encode(typeHash, uint32(0), uint64(START)));
        bytes memory now_ = sign(PROVIDER_KEY, digestOf(domain("SVC Providers", "2", address(providers)), structHash));
        vm.startPrank(operator);
        providers.deregister();
        uint32 id = providers.register();
        vm.stopPrank();
        vm.expectRevert(IProviderRegistry.StaleOp.selector);
        providers.setIdentity("old box", "", long, old);
        vm.expectRevert(IProviderRegistry.StaleOp.selector);
        providers.requestCapacity(0, uint64(START), now_);
        vm.assertEq(providers.lastIdentityAt(id), START);
        vm.assertEq(providers.lastCapacityAt(id), START);
    }

    /// A relayer pays for a publication. The order of its asks must not make it four times as expensive.
    function test_quotes_ascend_strictly() public {
        IAskRegistry.Ask[] memory quotes = new IAskRegistry.Ask[](3);
        for (uint32 i = 0; i < 3; ++i) {
            quotes[i] = IAskRegistry.Ask({modelId: 1 + i / 2, sla: 60 * (1 + i % 2), rateIn: 1, rateOut: 1});
        }
        vm.startPrank(operator);
        asks.publish(providerId, uint64(START), quotes, "");
        (quotes[1], quotes[2]) = (quotes[2], quotes[1]);
        vm.expectRevert(bytes4(keccak256("QuotesNotAscending()")));
        asks.publish(providerId, uint64(START + 1), quotes, "");
        quotes[2] = quotes[1];
        vm.expectRevert(bytes4(keccak256("QuotesNotAscending()")));
        asks.publish(providerId, uint64(START + 1), quotes, "");
    }

    function test_relay_inside_a_relay_is_refused() public {
        bytes[] memory inner = new bytes[](1);
        inner[0] = abi.encodeCall(jobs.DOMAIN_SEPARATOR, ());
        bytes[] memory outer = new bytes[](1);
        outer[0] = abi.encodeCall(jobs.relay, (inner));
        vm.recordLogs();
        vm.prank(relayer);
        jobs.relay(outer);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        vm.assertEq(logs.length, 1);
        vm.assertEq(logs[0].topics[0], IRelayed.CallRefused.selector);
        vm.assertEq(
            abi.decode(logs[0].data, (bytes)), abi.encodePacked(bytes4(keccak256("NestedRelay()")))
        );
    }

    /// An indexer of the chain can compute each provider's grace.
    function test_every_change_of_grace_has_an_event() public {
        (bytes32 jobId,) = claimed();
        vm.recordLogs();
        settle(jobId, 1);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        bytes32 topic = keccak256("StandingSet(uint32,uint16,uint16)");
        uint256 found;
        for (uint256 i = 0; i < logs.length; ++i) {
            if (logs[i].topics[0] != topic) continue;
            ++found;
            (uint16 reputation, uint16 grace) = abi.decode(logs[i].data, (uint16, uint16));
            vm.assertEq(reputation, providers.provider(providerId).reputation);
            vm.assertEq(grace, providers.provider(providerId).grace);
        }
        vm.assertEq(found, 1);
    }
}
