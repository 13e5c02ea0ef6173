// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {AskRegistry} from "../src/AskRegistry.sol";
import {JobRegistry} from "../src/JobRegistry.sol";
import {IAskRegistry} from "../src/interfaces/IAskRegistry.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IProviderRegistry} from "../src/interfaces/IProviderRegistry.sol";
import {IRelayed} from "../src/interfaces/IRelayed.sol";
import {World} from "./World.sol";

contract AdminTest is World {
    function test_catalogue_changes_are_announced_in_full() public {
        vm.expectEmit(address(jobs));
        emit IJobRegistry.ModelSet(9, "acme/painter", true, "acme", '{"type":"object"}');
        jobs.setModel(9, "acme/painter", true, "acme", '{"type":"object"}');
        vm.assertEq(jobs.modelEnabled(9), true);
        vm.expectEmit(address(jobs));
        emit IJobRegistry.SlaSet(60, true);
        jobs.setSla(60, true);
        vm.assertEq(jobs.slaAllowed(60), true);
        vm.expectEmit(address(jobs));
        emit IJobRegistry.FeesSet(100, 5);
        jobs.setFees(100, 5);
        (uint16 feeBps, uint128 gasFee) = jobs.fees();
        vm.assertEq(feeBps, 100);
        vm.assertEq(gasFee, 5);
        vm.expectEmit(address(jobs));
        emit IJobRegistry.TreasurySet(stranger);
        jobs.setTreasury(stranger);
        vm.assertEq(jobs.treasury(), stranger);
    }

    function test_catalogue_refusals_by_name() public {
        vm.expectRevert(IJobRegistry.InvalidModel.selector);
        jobs.setModel(0, "name", true, "", "");
        vm.expectRevert(IJobRegistry.InvalidModel.selector);
        jobs.setModel(1, "", true, "", "");
        vm.expectRevert(IJobRegistry.InvalidModel.selector);
        jobs.setModel(1, string(new bytes(257)), true, "", "");
        vm.expectRevert(IJobRegistry.InvalidSla.selector);
        jobs.setSla(0, true);
        vm.expectRevert(IJobRegistry.InvalidSla.selector);
        jobs.setSla(86_401, true);
        jobs.setSla(86_400, true);
        vm.expectRevert(IJobRegistry.FeeTooHigh.selector);
        jobs.setFees(2001, 0);
        vm.expectRevert(IJobRegistry.FeeTooHigh.selector);
        jobs.setFees(0, MOST_GAS_FEE + 1);
        jobs.setFees(2000, MOST_GAS_FEE);
        vm.assertEq(jobs.maxGasFee(), MOST_GAS_FEE);
        vm.expectRevert(IJobRegistry.ZeroAddress.selector);
        jobs.setTreasury(address(0));
    }

    /// Tokens paid to one of these addresses would be lost.
    function test_treasury_is_no_registry_and_not_the_token() public {
        JobRegistry other =
            new JobRegistry(address(this), address(token), address(providers), treasury, MOST_GAS_FEE);
        address[5] memory wrong =
            [address(jobs), address(providers), address(asks), address(token), address(other)];
        for (uint256 i = 0; i < 5; ++i) {
            vm.expectRevert(IJobRegistry.InvalidTreasury.selector);
            jobs.setTreasury(wrong[i]);
        }
        vm.expectRevert(IJobRegistry.InvalidTreasury.selector);
        new JobRegistry(address(this), address(token), address(providers), address(providers), MOST_GAS_FEE);
        jobs.setTreasury(address(this)); // any contract will do
    }

    function test_paused_registry_keeps_its_admin() public {
        jobs.pause();
        vm.expectRevert(Pausable.EnforcedPause.selector);
        jobs.renounceOwnership();
        jobs.unpause();
        jobs.renounceOwnership();
        vm.assertEq(jobs.owner(), address(0));
    }

    function test_token_gas_is_set_within_its_bounds_and_announced() public {
        vm.expectRevert(IJobRegistry.InvalidTokenGas.selector);
        jobs.setTokenGas(199_999);
        vm.expectRevert(IJobRegistry.InvalidTokenGas.selector);
        jobs.setTokenGas(2_000_001);
        vm.expectEmit(address(jobs));
        emit IJobRegistry.TokenGasSet(2_000_000);
        jobs.setTokenGas(2_000_000);
        vm.assertEq(jobs.tokenGas(), 2_000_000);
        jobs.setTokenGas(200_000);
    }

    function test_point_price_is_announced_when_set() public {
        vm.assertEq(providers.pointPrice(), POINT_PRICE);
        vm.expectEmit(address(providers));
        emit IProviderRegistry.PointPriceSet(7);
        providers.setPointPrice(7);
        vm.assertEq(providers.pointPrice(), 7);
    }

    function test_admin_calls_by_anyone_else_are_refused() public {
        vm.startPrank(stranger);
        bytes memory refusal = abi.encodeWithSelector(Ownable.OwnableUnauthorizedAccount.selector, stranger);
        vm.expectRevert(refusal);
        jobs.setModel(9, "name", true, "", "");
        vm.expectRevert(refusal);
        jobs.setSla(60, true);
        vm.expectRevert(refusal);
        jobs.setFees(0, 0);
        vm.expectRevert(refusal);
        jobs.setTreasury(stranger);
        vm.expectRevert(refusal);
        jobs.setTokenGas(300_000);
        vm.expectRevert(refusal);
        providers.setPointPrice(0);
        vm.expectRevert(refusal);
        jobs.pause();
        vm.expectRevert(refusal);
        jobs.unpause();
        vm.expectRevert(refusal);
        jobs.setRelayer(stranger, true);
        vm.expectRevert(refusal);
        token.mint(stranger, 1);
        vm.expectRevert(refusal);
        token.setBlacklisted(stranger, true);
        vm.expectRevert(refusal);
        token.pause();
        vm.expectRevert(refusal);
        token.unpause();
    }

    // One function each, because expectRevert does not see a `new` that forge replaces by a cheat code.
    function deployJobs(address token_, address providers_, address treasury_) external {
        new JobRegistry(address(this), token_, providers_, treasury_, MOST_GAS_FEE);
    }

    function deployAsks(address providers_) external {
        new AskRegistry(address(this), providers_);
    }

    function assertMissing(bytes memory deployment, bool missing) private {
        (bool done, bytes memory why) = address(this).call(deployment);
        vm.assertEq(done, !missing);
        if (missing) vm.assertEq(why, abi.encodePacked(IJobRegistry.ZeroAddress.selector));
    }

    function test_constructors_refuse_missing_addresses() public {
        (address token_, address providers_) = (address(token), address(providers));
        assertMissing(abi.encodeCall(this.deployJobs, (token_, providers_, treasury)), false);
        assertMissing(abi.encodeCall(this.deployJobs, (address(0), providers_, treasury)), true);
        assertMissing(abi.encodeCall(this.deployJobs, (token_, address(0), treasury)), true);
        assertMissing(abi.encodeCall(this.deployJobs, (token_, providers_, address(0))), true);
        assertMissing(abi.encodeCall(this.deployAsks, (providers_)), false);
        assertMissing(abi.encodeCall(this.deployAsks, (address(0))), true);
    }

    function test_ownership_passes_only_when_the_new_owner_accepts() public {
        jobs.transferOwnership(stranger);
        vm.assertEq(jobs.owner(), address(this));
        vm.prank(client);
        vm.expectRevert(abi.encodeWithSelector(Ownable.OwnableUnauthorizedAccount.selector, client));
        jobs.acceptOwnership();
        vm.prank(stranger);
        jobs.acceptOwnership();
        vm.assertEq(jobs.owner(), stranger);
        vm.expectRevert(abi.encodeWithSelector(Ownable.OwnableUnauthorizedAccount.selector, address(this)));
        jobs.setFees(0, 0);
    }

    function test_wiring_and_domains_read_as_deployed() public view {
        vm.assertEq(jobs.token(), address(token));
        vm.assertEq(jobs.providers(), address(providers));
        vm.assertEq(jobs.DOMAIN_SEPARATOR(), domain("SVC Jobs", "2", address(jobs)));
        vm.assertEq(providers.DOMAIN_SEPARATOR(), domain("SVC Providers", "2", address(providers)));
        vm.assertEq(asks.DOMAIN_SEPARATOR(), domain("SVC Asks", "2", address(asks)));
        vm.assertEq(token.DOMAIN_SEPARATOR(), domain("Dev Dollar", "1", address(token)));
    }

    function test_relayers_are_announced_when_set() public {
        vm.expectEmit(address(asks));
        emit IRelayed.RelayerSet(stranger, true);
        asks.setRelayer(stranger, true);
        vm.assertEq(asks.isRelayer(stranger), true);
        asks.setRelayer(stranger, false);
        vm.assertEq(asks.isRelayer(stranger), false);
    }
}
