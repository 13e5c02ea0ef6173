// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {DevToken} from "../src/DevToken.sol";
import {JobRegistry} from "../src/JobRegistry.sol";
import {ProviderRegistry} from "../src/ProviderRegistry.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {Check} from "./Check.sol";
import {Market} from "./Market.sol";

/// Invariants of any history of the market.
contract ConservationTest is Check {
    Market private _market;
    JobRegistry private _jobs;
    DevToken private _token;
    ProviderRegistry private _providers;

    function setUp() public {
        _market = new Market();
        _market.begin();
        (address jobs, address token, address providers) = _market.world();
        (_jobs, _token, _providers) = (JobRegistry(jobs), DevToken(token), ProviderRegistry(providers));
    }

    /// forge reads from these functions which contract and which functions to call.
    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(_market);
    }

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[12] memory acts = [
            Market.postJob.selector,
            Market.claimJob.selector,
            Market.settleJob.selector,
            Market.failJob.selector,
            Market.reclaimJob.selector,
            Market.cancelJob.selector,
            Market.withdrawCredit.selector,
            Market.letTimePass.selector,
            Market.changeTheRules.selector,
            Market.troubleTheToken.selector,
            Market.calmTheToken.selector,
            Market.donate.selector
        ];
        // Posts and claims are more frequent, so that there are jobs to end.
        bytes4[] memory selectors = new bytes4[](16);
        for (uint256 i = 0; i < 16; ++i) {
            selectors[i] = acts[i < 12 ? i : i % 2];
        }
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(_market), selectors);
    }

    function invariant_registry_holds_escrow_credits_and_donations_to_the_unit() public view {
        vm.assertEq(
            _token.balanceOf(address(_jobs)), _jobs.escrowed() + _jobs.totalCredits() + _market.donated(), "held"
        );
    }

    function invariant_everything_collected_is_escrowed_or_went_to_provider_owner_or_treasury() public view {
        uint256 split = _market.toProviders() + _market.toOwners() + _market.toTreasury();
        vm.assertEq(_market.collected(), split + _jobs.escrowed(), "collected");
    }

    function invariant_credits_add_up_to_their_total() public view {
        address[4] memory parties = _market.parties();
        uint256 sum = 0;
        for (uint256 i = 0; i < 4; ++i) {
            sum += _jobs.credit(parties[i]);
        }
        vm.assertEq(sum, _jobs.totalCredits(), "credits");
    }

    function invariant_wallets_hold_what_the_books_say() public view {
        address[4] memory parties = _market.parties(); // client, two providers, treasury
        vm.assertEq(
            _token.balanceOf(parties[0]) + _jobs.credit(parties[0]) + _market.collected(),
            1e18 + _market.toOwners(),
            "owner"
        );
        uint256 earned = 0;
        for (uint256 i = 1; i < 3; ++i) {
            earned += _token.balanceOf(parties[i]) + _jobs.credit(parties[i]);
        }
        vm.assertEq(earned, _market.toProviders(), "providers");
        vm.assertEq(_token.balanceOf(parties[3]) + _jobs.credit(parties[3]), _market.toTreasury(), "treasury");
    }

    function invariant_every_job_is_claimed_and_ends_at_most_once_and_active_jobs_are_the_claimed_ones() public view {
        uint256[3] memory active;
        for (uint256 i = 0; i < _market.count(); ++i) {
            bytes32 jobId = _market.ids(i);
            IJobRegistry.Job memory job = _jobs.job(jobId);
            vm.assertLe(_market.claims(jobId), 1);
            bool ended = job.endedBecause != IJobRegistry.EndedBecause.NotEnded
                && job.endedBecause != IJobRegistry.EndedBecause.Expired;
            vm.assertEq(_market.finalEvents(jobId), ended ? 1 : 0, "final events");
            if (job.state == IJobRegistry.State.Claimed) active[job.providerId] += 1;
        }
        for (uint32 id = 1; id < 3; ++id) {
            vm.assertEq(_providers.provider(id).activeJobs, active[id], "active jobs");
        }
    }
}
