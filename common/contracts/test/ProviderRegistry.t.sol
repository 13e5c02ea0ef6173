// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {JobRegistry} from "../src/JobRegistry.sol";
import {IProviderRegistry} from "../src/interfaces/IProviderRegistry.sol";
import {World} from "./World.sol";

contract ProviderRegistryTest is World {
    uint256 private constant FULL_SHARE = 5 * uint256(POINT_PRICE);

    // --- registration and admin ---

    function test_register_starts_unlisted_with_half_the_reputation() public {
        vm.expectEmit(address(providers));
        emit IProviderRegistry.ProviderRegistered(3, stranger);
        vm.expectEmit(address(providers));
        emit IProviderRegistry.StandingSet(3, 500, 40);
        vm.prank(stranger);
        uint32 id = providers.register();
        IProviderRegistry.Provider memory p = providers.provider(id);
        vm.assertEq(id, 3);
        vm.assertEq(providers.providerCount(), 3);
        vm.assertEq(providers.providerIdOf(stranger), id);
        vm.assertEq(providers.operatorOf(id), stranger);
        vm.assertEq(p.operator, stranger);
        vm.assertEq(p.boxKey, bytes32(0));
        vm.assertEq(p.listed, false);
        vm.assertEq(p.allowAllModels, false);
        vm.assertEq(p.reputation, 500);
        vm.assertEq(p.requested, 1);
        vm.assertEq(p.ceiling, 0);
        vm.assertEq(p.activeJobs, 0);
        vm.assertEq(p.grace, 40);
        vm.assertEq(providers.capacityOf(id), 1);
    }

    function test_register_twice_is_refused() public {
        vm.prank(operator);
        vm.expectRevert(IProviderRegistry.AlreadyRegistered.selector);
        providers.register();
    }

    function test_unknown_provider_reads_as_nothing() public view {
        vm.assertEq(providers.provider(99).operator, address(0));
        vm.assertEq(providers.operatorOf(99), address(0));
        vm.assertEq(providers.capacityOf(99), 0);
        vm.assertEq(providers.providerIdOf(stranger), 0);
    }

    function test_admin_sets_what_claims_depend_on() public {
        vm.expectEmit(address(providers));
        emit IProviderRegistry.ProviderListed(providerId, false);
        providers.setListed(providerId, false);
        vm.expectEmit(address(providers));
        emit IProviderRegistry.CeilingSet(providerId, 8);
        providers.setCeiling(providerId, 8);
        vm.expectEmit(address(providers));
        emit IProviderRegistry.AllModelsAllowed(providerId, false);
        providers.setAllowAllModels(providerId, false);
        vm.assertEq(providers.modelAllowed(providerId, MODEL), false);
        vm.expectEmit(address(providers));
        emit IProviderRegistry.ModelAllowed(providerId, MODEL, true);
        providers.setModelAllowed(providerId, MODEL, true);

        vm.assertEq(providers.provider(providerId).listed, false);
        vm.assertEq(providers.provider(providerId).ceiling, 8);
        vm.assertEq(providers.modelAllowed(providerId, MODEL), true);
        vm.assertEq(providers.modelAllowed(providerId, MODEL + 1), false);
        vm.assertEq(providers.capacityOf(providerId), 4);
    }

    function test_admin_calls_for_an_unknown_provider_are_refused() public {
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.setListed(99, true);
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.setCeiling(99, 1);
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.setAllowAllModels(0, true);
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.setModelAllowed(99, MODEL, true);
    }

    function test_admin_calls_by_anyone_else_are_refused() public {
        vm.startPrank(operator);
        bytes memory refusal = abi.encodeWithSelector(Ownable.OwnableUnauthorizedAccount.selector, operator);
        vm.expectRevert(refusal);
        providers.setListed(providerId, true);
        vm.expectRevert(refusal);
        providers.setCeiling(providerId, 1);
        vm.expectRevert(refusal);
        providers.setAllowAllModels(providerId, true);
        vm.expectRevert(refusal);
        providers.setModelAllowed(providerId, MODEL, true);
        vm.expectRevert(refusal);
        providers.setAllowlist("key", 1, "{}");
        vm.expectRevert(refusal);
        providers.setJobRegistry(address(jobs));
    }

    function test_allowlist_keeps_a_status_of_zero_to_two() public {
        vm.expectEmit(address(providers));
        emit IProviderRegistry.AllowlistSet("key", 2, "{}");
        providers.setAllowlist("key", 2, "{}");
        vm.assertEq(providers.allowlistStatus("key"), 2);
        vm.expectRevert(IProviderRegistry.InvalidStatus.selector);
        providers.setAllowlist("key", 3, "{}");
        providers.setAllowlist("key", 0, "");
        vm.assertEq(providers.allowlistStatus("key"), 0);
    }

    function test_job_registry_is_not_exchanged_while_one_of_its_jobs_is_claimed() public {
        (bytes32 jobId,) = claimed();
        address next =
            address(new JobRegistry(address(this), address(token), address(providers), treasury, MOST_GAS_FEE));
        vm.expectRevert(IProviderRegistry.JobsActive.selector);
        providers.setJobRegistry(next);
        vm.expectRevert(IProviderRegistry.ZeroAddress.selector);
        providers.setJobRegistry(address(0));
        fail(jobId);
        vm.expectEmit(address(providers));
        emit IProviderRegistry.JobRegistrySet(next);
        providers.setJobRegistry(next);
        vm.assertEq(providers.jobRegistry(), next);
    }

    // --- ops ---

    function test_set_identity_by_signature_stores_the_key_and_emits_the_evidence() public {
        bytes memory sig = identitySig(PROVIDER_KEY, "box", "evidence", uint64(START + 1));
        vm.expectEmit(address(providers));
        emit IProviderRegistry.IdentitySet(providerId, "box", "evidence", uint64(START + 1));
        vm.prank(stranger);
        providers.setIdentity("box", "evidence", uint64(START + 1), sig);
        vm.assertEq(providers.provider(providerId).boxKey, "box");
        vm.assertEq(providers.lastIdentityAt(providerId), START + 1);
    }

    function test_set_identity_takes_evidence_up_to_its_limit() public {
        vm.startPrank(operator);
        vm.expectRevert(IProviderRegistry.EvidenceTooLong.selector);
        providers.setIdentity("box", new bytes(32_769), uint64(START + 1), "");
        providers.setIdentity("box", new bytes(32_768), uint64(START + 1), "");
    }

    function test_set_identity_refusals_by_name() public {
        bytes memory good = identitySig(PROVIDER_KEY, "box", "evidence", uint64(START + 1));
        bytes[] memory wrong = malformed(good);
        for (uint256 i = 0; i < wrong.length; ++i) {
            vm.expectRevert(IProviderRegistry.InvalidSignature.selector);
            providers.setIdentity("box", "evidence", uint64(START + 1), wrong[i]);
        }
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.setIdentity("box", "other evidence", uint64(START + 1), good);
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.setIdentity("box", "", uint64(START + 1), "");
    }

    function test_op_times_only_grow_and_run_at_most_an_hour_ahead_even_for_the_operator_itself() public {
        vm.startPrank(operator);
        vm.expectRevert(IProviderRegistry.StaleOp.selector);
        providers.setIdentity("box", "", uint64(START + 3601), "");
        providers.setIdentity("box", "", uint64(START + 3600), "");
        vm.expectRevert(IProviderRegistry.StaleOp.selector);
        providers.setIdentity("box", "", uint64(START + 3600), "");

        vm.expectRevert(IProviderRegistry.StaleOp.selector); // enrolment already used START + 1
        providers.requestCapacity(5, uint64(START + 1), "");
        vm.expectRevert(IProviderRegistry.StaleOp.selector);
        providers.requestCapacity(5, uint64(START + 3601), "");
        providers.requestCapacity(5, uint64(START + 2), "");
        vm.assertEq(providers.lastCapacityAt(providerId), START + 2);
        vm.assertEq(providers.lastIdentityAt(providerId), START + 3600);
    }

    function test_request_capacity_by_signature_changes_what_is_asked_for() public {
        bytes32 typeHash = keccak256("RequestCapacity(uint32 n,uint64 issuedAt)");
        bytes32 digest = digestOf(
            domain("SVC Providers", "2", address(providers)), keccak256(abi.encode(typeHash, 6, START + 2))
        );
        vm.expectEmit(address(providers));
        emit IProviderRegistry.CapacityRequested(providerId, 6, uint64(START + 2));
        providers.requestCapacity(6, uint64(START + 2), sign(PROVIDER_KEY, digest));
        vm.assertEq(providers.provider(providerId).requested, 6);
        vm.expectRevert(IProviderRegistry.UnknownProvider.selector);
        providers.requestCapacity(7, uint64(START + 2), sign(PROVIDER_KEY, digest));
    }

    // --- the job registry's hooks ---

    function test_hooks_are_for_the_job_registry_alone() public {
        vm.startPrank(operator);
        vm.expectRevert(IProviderRegistry.NotJobRegistry.selector);
        providers.jobClaimed(operator, MODEL, true, 0);
        vm.expectRevert(IProviderRegistry.NotJobRegistry.selector);
        providers.jobSettled(providerId, operator, client, FULL_SHARE);
        vm.expectRevert(IProviderRegistry.NotJobRegistry.selector);
        providers.jobFailed(providerId, operator, true, false);
        vm.expectRevert(IProviderRegistry.NotJobRegistry.selector);
        providers.jobReclaimed(providerId);
    }

    function test_reputation_stays_between_100_and_1000_and_is_announced_only_when_it_moves() public {
        becomeJobRegistry();
        for (uint256 i = 0; i < 100; ++i) {
            endOne(0);
        }
        vm.assertEq(providers.provider(providerId).reputation, 1000);
        providers.jobClaimed(operator, MODEL, true, 0);
        vm.recordLogs();
        providers.jobSettled(providerId, operator, client, FULL_SHARE);
        vm.assertEq(vm.getRecordedLogs().length, 0);

        uint16[12] memory after_ = [900, 800, 700, 600, 500, 400, 300, 200, 175, 150, 125, 100];
        for (uint256 i = 0; i < 12; ++i) {
            endOne(i < 8 ? 2 : 1);
            vm.assertEq(providers.provider(providerId).reputation, after_[i]);
        }
        endOne(1);
        endOne(2);
        vm.assertEq(providers.provider(providerId).reputation, 100);
    }

    function test_any_history_of_endings_keeps_reputation_and_count_true(uint8[64] memory endings) public {
        becomeJobRegistry();
        int256 expected = 500;
        for (uint256 i = 0; i < endings.length; ++i) {
            uint8 ending = endings[i] % 3;
            endOne(ending);
            expected += ending == 0 ? int256(5) : ending == 1 ? -25 : -100;
            expected = expected > 1000 ? int256(1000) : expected < 100 ? int256(100) : expected;
            vm.assertEq(providers.provider(providerId).reputation, uint256(expected));
            vm.assertEq(providers.provider(providerId).activeJobs, 0);
        }
    }

    function test_capacity_follows_its_formula(uint32 requested, uint32 ceiling, uint8 settled) public {
        vm.prank(operator);
        providers.requestCapacity(requested, uint64(START + 2), "");
        providers.setCeiling(providerId, ceiling);
        becomeJobRegistry();
        for (uint256 i = 0; i < settled; ++i) {
            endOne(0);
        }
        uint256 reputation = settled >= 100 ? 1000 : 500 + uint256(settled) * 5;
        uint256 granted = reputation * (requested < ceiling ? requested : ceiling) / 1000;
        vm.assertEq(providers.capacityOf(providerId), granted == 0 ? 1 : granted);
    }

    /// `ending`: 0 settled, 1 failed too late to be excused, 2 reclaimed.
    function endOne(uint256 ending) private {
        providers.setListed(providerId, true); // a loss at the floor delists
        providers.jobClaimed(operator, MODEL, true, 0);
        if (ending == 0) providers.jobSettled(providerId, operator, client, FULL_SHARE);
        if (ending == 1) providers.jobFailed(providerId, operator, false, false);
        if (ending == 2) providers.jobReclaimed(providerId);
    }

    function identitySig(uint256 key, bytes32 boxKey, bytes memory evidence, uint64 issuedAt)
        private
        view
        returns (bytes memory)
    {
        bytes32 typeHash = keccak256("SetIdentity(bytes32 boxKey,bytes evidence,uint64 issuedAt)");
        bytes32 structHash = keccak256(abi.encode(typeHash, boxKey, keccak256(evidence), issuedAt));
        return sign(key, digestOf(domain("SVC Providers", "2", address(providers)), structHash));
    }
}
