// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {DevToken} from "../src/DevToken.sol";
import {JobRegistry} from "../src/JobRegistry.sol";
import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IRelayed} from "../src/interfaces/IRelayed.sol";
import {Vm} from "./Check.sol";
import {World} from "./World.sol";

/// Records how much gas a transfer got, and reverts balance queries with data that reads as a large number.
contract MeteredToken is DevToken {
    uint256 public found;
    bool public secretive;

    constructor(address owner) DevToken(owner) {}

    function keepSecrets() external {
        secretive = true;
    }

    function balanceOf(address account) public view override returns (uint256) {
        if (secretive) {
            assembly ("memory-safe") {
                mstore(0, not(0))
                revert(0, 32)
            }
        }
        return super.balanceOf(account);
    }

    function transfer(address to, uint256 value) public override returns (bool) {
        found = gasleft();
        return super.transfer(to, value);
    }
}

/// Tests of the last allowed and the first forbidden values.
contract EdgesTest is World {
    function makeToken() internal override returns (address) {
        return address(new MeteredToken(address(this)));
    }

    /// A job with a price of `cap` and no fees.
    function claimedFor(bytes32 c, uint128 cap) private returns (bytes32 jobId, Draft memory d) {
        IJobRegistry.Order memory order = orderOf(c);
        (order.rateIn, order.unitsIn, order.rateOut, order.unitsOut) = (0, 0, cap, 1e6);
        d = signed(order);
        jobId = post(d);
    }

    function test_escrow_holds_what_128_bits_hold_and_refuses_one_more() public {
        jobs.setFees(0, 0);
        token.mint(client, 1 << 128);
        (bytes32 half, Draft memory first) = claimedFor("half", 1 << 127);
        (bytes32 other, Draft memory second) = claimedFor("other half", (1 << 127) - 1);
        (bytes32 more, Draft memory third) = claimedFor("one more", 1);
        claim(half, first.paySig);
        claim(other, second.paySig);
        vm.assertEq(jobs.escrowed(), type(uint128).max);
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.EscrowFull.selector);
        jobs.claim(terms(more), 0, "", third.paySig);
    }

    /// ECDSA also has a 64-byte form, which tokens reject.
    function test_payment_signature_has_65_bytes_at_the_claim() public {
        (bytes32 jobId, Draft memory d) = posted();
        (bytes32 r, bytes32 s) = abi.decode(d.paySig, (bytes32, bytes32));
        bytes memory compact = abi.encodePacked(r, uint256(s) | uint256(uint8(d.paySig[64]) - 27) << 255);
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.InvalidPaymentSignature.selector);
        jobs.claim(terms(jobId), 0, "", compact);
    }

    function test_treasury_gets_a_share_of_one() public {
        jobs.setFees(0, 1);
        (bytes32 jobId,) = claimed();
        settle(jobId, 4096);
        vm.assertEq(jobs.credit(treasury), 1);
        vm.assertEq(jobs.totalCredits(), 1);
    }

    function test_nothing_is_transferred_where_nothing_is_due() public {
        (bytes32 jobId,) = claimed();
        vm.recordLogs();
        settle(jobId, 4096); // all units: no refund
        Vm.Log[] memory logs = vm.getRecordedLogs();
        uint256 transfers;
        for (uint256 i = 0; i < logs.length; ++i) {
            if (logs[i].topics[0] == IERC20.Transfer.selector) ++transfers;
        }
        vm.assertEq(transfers, 1);
    }

    /// A rejected claim reverts with only a selector.
    function test_refusal_of_a_claim_is_four_bytes() public {
        (bytes32 jobId, Draft memory d) = claimed();
        vm.prank(operator);
        (bool done, bytes memory why) =
            address(jobs).call(abi.encodeCall(jobs.claim, (terms(jobId), 0, "", d.paySig)));
        vm.assertEq(done, false);
        vm.assertEq(why, abi.encodePacked(IJobRegistry.NotOpen.selector));
    }

    function test_thriftiest_exit_that_is_taken_gives_the_token_its_gas() public {
        jobs.setTokenGas(2_000_000);
        (bytes32 jobId,) = claimed();
        bytes memory call = abi.encodeCall(jobs.fail, (terms(jobId), 0, ""));
        (uint256 starved, uint256 enough) = (1_000_000, 4_000_000);
        while (enough - starved > 1) {
            uint256 middle = (starved + enough) / 2;
            uint256 before = vm.snapshotState();
            vm.prank(operator);
            (bool done,) = address(jobs).call{gas: middle}(call);
            vm.revertToState(before);
            if (done) enough = middle;
            else starved = middle;
        }
        vm.prank(operator);
        (bool taken,) = address(jobs).call{gas: enough}(call);
        vm.assertTrue(taken);
        // The difference is the cost of dispatching the function.
        vm.assertGe(MeteredToken(address(token)).found() + 1000, jobs.tokenGas());
        vm.assertEq(jobs.credit(client), 0);
    }

    function test_post_for_a_token_that_does_not_answer_is_refused() public {
        JobRegistry bare; // forge links assignments late, but not declarations
        bare = new JobRegistry(address(this), stranger, address(providers), treasury, MOST_GAS_FEE);
        bare.setModel(MODEL, "acme/word-mill-7b", true, "acme", "{}");
        bare.setSla(SLA, true);
        IJobRegistry.Order memory order = orderOf("c");
        bytes32 digest = digestOf(domain("SVC Jobs", "2", address(bare)), orderHash(order));
        // As if an address without code had returned zero.
        bytes32 payment =
            digestOf(0, paymentHash(client, address(bare), capOf(order), 0, order.expiresAt + 1, idOf(client, "c")));
        bytes memory orderSig = sign(CLIENT_KEY, digest);
        bytes memory paySig = sign(CLIENT_KEY, payment);
        uint256 amount = capOf(order);
        vm.prank(client);
        vm.expectRevert(IJobRegistry.TokenUnreadable.selector);
        bare.post(order, client, amount, CID, orderSig, paySig);
    }

    function test_post_for_a_token_that_tells_no_balance_is_refused() public {
        Draft memory d = draftOf("c");
        MeteredToken(address(token)).keepSecrets();
        vm.prank(client);
        vm.expectRevert(IJobRegistry.TokenUnreadable.selector);
        jobs.post(d.order, d.owner, d.amount, d.taskCid, d.orderSig, d.paySig);
    }

    function test_job_costs_one_at_no_rates_and_where_the_rest_of_a_division_is_one() public {
        jobs.setFees(0, 0);
        (bytes32 free, Draft memory first) = claimedFor("free", 0);
        claim(free, first.paySig);
        vm.assertEq(jobs.escrowed(), 1);
        IJobRegistry.Order memory order = orderOf("dust");
        (order.rateIn, order.unitsIn, order.rateOut) = (1, 1, 0);
        Draft memory second = signed(order);
        claim(post(second), second.paySig);
        vm.assertEq(jobs.escrowed(), 2);
    }

    /// Data of 36 bytes, with a last byte that is not zero.
    function test_refusal_inside_a_relay_is_told_to_its_last_byte() public {
        bytes[] memory calls = new bytes[](1);
        calls[0] = abi.encodeCall(jobs.pause, ());
        vm.expectEmit(address(jobs));
        emit IRelayed.CallRefused(0, abi.encodeWithSelector(Ownable.OwnableUnauthorizedAccount.selector, relayer));
        vm.prank(relayer);
        jobs.relay(calls);
    }

    function test_model_name_has_256_bytes_at_most() public {
        jobs.setModel(1, string(new bytes(256)), true, "", "");
        vm.expectRevert(IJobRegistry.InvalidModel.selector);
        jobs.setModel(1, string(new bytes(257)), true, "", "");
    }

    function test_grace_ends_at_320() public {
        for (uint256 i = 0; i < 57; ++i) {
            Draft memory d = draftOf(bytes32(i));
            bytes32 jobId = post(d);
            claim(jobId, d.paySig);
            settle(jobId, 1);
        }
        vm.assertEq(providers.provider(providerId).grace, 320);
    }

    /// Reputation does not grow by the smallest fraction of a point.
    function test_order_to_oneself_earns_nothing_at_all() public {
        becomeJobRegistry();
        providers.setPointPrice(1 << 16); // one unit is the smallest stored fraction
        for (uint256 i = 0; i < 3; ++i) {
            providers.jobClaimed(operator, MODEL, true, 0);
        }
        providers.jobSettled(providerId, operator, client, (1 << 16) - 1);
        providers.jobSettled(providerId, operator, operator, 1 << 20);
        vm.assertEq(providers.provider(providerId).reputation, 500);
        providers.jobSettled(providerId, operator, client, 1);
        vm.assertEq(providers.provider(providerId).reputation, 501);
    }
}
