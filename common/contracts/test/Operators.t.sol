// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IAskRegistry} from "../src/interfaces/IAskRegistry.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IProviderRegistry} from "../src/interfaces/IProviderRegistry.sol";
import {World} from "./World.sol";

/// A provider changes its operator in two steps, and leaves.
contract OperatorsTest is World {
    uint256 private constant NEXT_KEY = 0x920003;
    address private immutable next = vm.addr(NEXT_KEY);

    function test_old_operator_acts_until_the_new_one_accepts_and_is_nobody_then() public {
        (bytes32 first,) = claimed();
        Draft memory d = draftOf("second");
        bytes32 second = post(d);
        vm.expectEmit(address(providers));
        emit IProviderRegistry.OperatorProposed(providerId, next);
        vm.prank(operator);
        providers.proposeOperator(next);
        vm.assertEq(providers.proposedOperator(providerId), next);
        vm.prank(next);
        vm.expectRevert(IJobRegistry.NotTheClaimer.selector);
        jobs.fail(terms(first), 0, "");
        claim(second, d.paySig); // the old operator is still in charge

        vm.expectEmit(address(providers));
        emit IProviderRegistry.OperatorChanged(providerId, next);
        vm.prank(next);
        providers.acceptOperator(providerId);
        vm.assertEq(providers.operatorOf(providerId), next);
        vm.assertEq(providers.providerIdOf(next), providerId);
        vm.assertEq(providers.providerIdOf(operator), 0);
        vm.assertEq(providers.proposedOperator(providerId), address(0));
        vm.assertEq(providers.provider(providerId).activeJobs, 2);

        // A leaked key can no longer settle, not even with earlier signatures.
        bytes memory old = settleSig(PROVIDER_KEY, first, 1, uint64(START));
        vm.prank(relayer);
        vm.expectRevert(IJobRegistry.NotTheClaimer.selector);
        jobs.settle(terms(first), 1, uint64(START), CID, old);
        vm.prank(operator);
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.proposeOperator(operator);

        // The claimed jobs moved as well, and pay the new account.
        bytes memory sig = settleSig(NEXT_KEY, first, 1, uint64(START));
        vm.prank(relayer);
        jobs.settle(terms(first), 1, uint64(START), CID, sig);
        vm.assertEq(token.balanceOf(next), 2006);
        vm.assertEq(token.balanceOf(operator), 0);
        vm.prank(next);
        jobs.fail(terms(second), 0, "");
        vm.assertEq(providers.provider(providerId).activeJobs, 0);
        vm.prank(next);
        asks.publish(providerId, uint64(START), new IAskRegistry.Ask[](0), "");
    }

    function test_proposal_is_taken_back_or_replaced_before_it_is_accepted() public {
        vm.startPrank(operator);
        providers.proposeOperator(next);
        providers.proposeOperator(address(0));
        vm.stopPrank();
        vm.prank(next);
        vm.expectRevert(IProviderRegistry.NotProposed.selector);
        providers.acceptOperator(providerId);
        vm.prank(operator);
        providers.proposeOperator(stranger);
        vm.prank(stranger);
        providers.acceptOperator(providerId);
        vm.prank(stranger);
        vm.expectRevert(IProviderRegistry.NotProposed.selector);
        providers.acceptOperator(providerId); // only once
    }

    function test_account_that_operates_a_provider_takes_over_no_other() public {
        vm.prank(operator);
        providers.proposeOperator(rival);
        vm.prank(rival);
        vm.expectRevert(IProviderRegistry.AlreadyRegistered.selector);
        providers.acceptOperator(providerId);
        vm.prank(rival);
        providers.deregister();
        vm.prank(rival);
        providers.acceptOperator(providerId);
        vm.assertEq(providers.operatorOf(providerId), rival);
    }

    function test_former_operator_may_register_anew_and_starts_from_the_beginning() public {
        vm.prank(operator);
        providers.proposeOperator(next);
        vm.prank(next);
        providers.acceptOperator(providerId);
        vm.prank(operator);
        uint32 id = providers.register();
        vm.assertEq(id, 3);
        vm.assertEq(providers.provider(id).listed, false);
    }

    function test_deregistered_provider_claims_nothing_and_reads_as_nothing() public {
        (bytes32 jobId, Draft memory d) = posted();
        vm.expectEmit(address(providers));
        emit IProviderRegistry.ProviderDeregistered(providerId);
        vm.prank(operator);
        providers.deregister();
        vm.assertEq(providers.provider(providerId).operator, address(0));
        vm.assertEq(providers.provider(providerId).listed, false);
        vm.assertEq(providers.providerIdOf(operator), 0);
        vm.assertEq(providers.capacityOf(providerId), 0);
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.UnknownProvider.selector);
        jobs.claim(terms(jobId), 0, "", d.paySig);
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.setListed(providerId, true);
        vm.prank(operator);
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.deregister();
    }

    function test_provider_leaves_only_when_its_jobs_have_ended() public {
        (bytes32 jobId,) = claimed();
        vm.prank(operator);
        vm.expectRevert(IProviderRegistry.JobsActive.selector);
        providers.deregister();
        fail(jobId);
        vm.prank(operator);
        providers.deregister();
    }

    function test_proposal_ends_with_the_provider() public {
        vm.startPrank(operator);
        providers.proposeOperator(next);
        providers.deregister();
        vm.stopPrank();
        vm.prank(next);
        vm.expectRevert(IProviderRegistry.NotProposed.selector);
        providers.acceptOperator(providerId);
    }
}
