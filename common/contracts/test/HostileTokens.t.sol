// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {DevToken} from "../src/DevToken.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {World} from "./World.sol";

/// Keeps one unit of every transfer.
contract FeeToken is DevToken {
    constructor(address owner) DevToken(owner) {}

    function _update(address from, address to, uint256 value) internal override {
        super._update(from, to, value);
        if (from != address(0) && to != address(0)) super._update(to, address(0xFEE), 1);
    }
}

/// Returns `false` instead of reverting.
contract FalseToken is DevToken {
    bool public refusing;

    constructor(address owner) DevToken(owner) {}

    function setRefusing(bool refuses) external {
        refusing = refuses;
    }

    function transfer(address to, uint256 value) public override returns (bool) {
        return !refusing && super.transfer(to, value);
    }
}

/// Returns no data on success, like some old and large tokens.
contract SilentToken is DevToken {
    constructor(address owner) DevToken(owner) {}

    function transfer(address to, uint256 value) public override returns (bool) {
        _transfer(msg.sender, to, value);
        assembly {
            return(0, 0)
        }
    }
}

/// Rejects transfers by burning all gas, or by returning a lot of data.
contract WastefulToken is DevToken {
    bool public burning;
    bool public flooding;

    constructor(address owner) DevToken(owner) {}

    function setWaste(bool burns, bool floods) external {
        (burning, flooding) = (burns, floods);
    }

    function transfer(address to, uint256 value) public override returns (bool) {
        if (burning) {
            assembly {
                invalid()
            }
        }
        if (flooding) {
            assembly {
                revert(0, 100000)
            }
        }
        return super.transfer(to, value);
    }
}

/// Calls back into a contract at every transfer, and records the return value.
contract ReentrantToken is DevToken {
    address public target;
    bytes public call;
    uint256 public attempts;
    uint256 public successes;
    bytes public answer;

    constructor(address owner) DevToken(owner) {}

    function plan(address newTarget, bytes calldata newCall) external {
        (target, call) = (newTarget, newCall);
    }

    function _update(address from, address to, uint256 value) internal override {
        super._update(from, to, value);
        if (call.length == 0) return;
        (bool done, bytes memory data) = target.call(call);
        attempts += 1;
        successes += done ? 1 : 0;
        answer = data;
    }
}

contract FeeTokenTest is World {
    function makeToken() internal override returns (address) {
        return address(new FeeToken(address(this)));
    }

    function test_claim_that_brings_less_than_the_amount_is_refused() public {
        (bytes32 jobId, Draft memory d) = posted();
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.PaymentShort.selector);
        jobs.claim(terms(jobId), 0, "", d.paySig);
        vm.assertEq(jobs.escrowed(), 0);
    }
}

contract FalseTokenTest is World {
    function makeToken() internal override returns (address) {
        return address(new FalseToken(address(this)));
    }

    function test_payout_answered_with_false_becomes_a_credit() public {
        (bytes32 jobId, Draft memory d) = claimed();
        FalseToken(address(token)).setRefusing(true);
        fail(jobId);
        vm.assertEq(jobs.credit(client), d.amount);
        vm.expectRevert(IJobRegistry.WithdrawalRefused.selector);
        jobs.withdraw(client);
        FalseToken(address(token)).setRefusing(false);
        jobs.withdraw(client);
        vm.assertEq(token.balanceOf(client), 1e18);
    }
}

contract SilentTokenTest is World {
    function makeToken() internal override returns (address) {
        return address(new SilentToken(address(this)));
    }

    function test_payout_without_an_answer_counts_as_paid() public {
        (bytes32 jobId,) = claimed();
        settle(jobId, 1);
        vm.assertEq(jobs.totalCredits(), jobs.credit(treasury));
        jobs.withdraw(treasury);
        vm.assertEq(token.balanceOf(address(jobs)), 0);
    }
}

contract WastefulTokenTest is World {
    function makeToken() internal override returns (address) {
        return address(new WastefulToken(address(this)));
    }

    function test_token_that_burns_all_gas_stops_no_exit() public {
        (bytes32 jobId, Draft memory d) = claimed();
        WastefulToken(address(token)).setWaste(true, false);
        vm.prank(operator);
        jobs.settle{gas: 1_500_000}(terms(jobId), 1, 0, CID, "");
        vm.assertEq(jobs.totalCredits(), d.amount);
    }

    function test_token_that_answers_with_a_heap_of_bytes_stops_no_exit() public {
        (bytes32 jobId, Draft memory d) = claimed();
        WastefulToken(address(token)).setWaste(false, true);
        vm.prank(operator);
        jobs.settle{gas: 1_500_000}(terms(jobId), 1, 0, CID, "");
        vm.assertEq(jobs.totalCredits(), d.amount);
    }
}

contract ReentrantTokenTest is World {
    function makeToken() internal override returns (address) {
        return address(new ReentrantToken(address(this)));
    }

    /// The registry also has the money of a second job, which re-entrancy could steal.
    function test_every_way_back_in_is_shut_while_the_token_runs() public {
        Draft memory rich = draftOf("rich");
        bytes32 other = post(rich);
        claim(other, rich.paySig);
        (bytes32 jobId, Draft memory d) = posted();

        ReentrantToken hostile = ReentrantToken(address(token));
        bytes memory failSig = opSig(PROVIDER_KEY, "Fail", jobId, uint64(START));
        bytes memory otherFail = opSig(PROVIDER_KEY, "Fail", other, uint64(START));
        bytes memory claimSig = opSig(PROVIDER_KEY, "Claim", jobId, uint64(START));
        bytes[6] memory calls = [
            abi.encodeCall(jobs.fail, (terms(jobId), uint64(START), failSig)),
            abi.encodeCall(jobs.fail, (terms(other), uint64(START), otherFail)),
            abi.encodeCall(jobs.claim, (terms(jobId), uint64(START), claimSig, d.paySig)),
            abi.encodeCall(jobs.settle, (terms(jobId), 1, uint64(START), CID, "")),
            abi.encodeCall(jobs.reclaim, (terms(other))),
            abi.encodeCall(jobs.withdraw, (stranger))
        ];
        for (uint256 i = 0; i < calls.length; ++i) {
            uint256 snapshot = vm.snapshotState();
            hostile.plan(address(jobs), calls[i]);
            claim(jobId, d.paySig);
            vm.assertEq(hostile.attempts(), 1);
            assertShut(hostile);
            vm.assertEq(jobs.escrowed(), 2 * d.amount);
            settle(jobId, 1);
            vm.assertEq(hostile.attempts(), 3);
            assertShut(hostile);
            vm.assertEq(jobs.escrowed(), d.amount);
            vm.assertEq(token.balanceOf(address(jobs)), d.amount + jobs.credit(treasury));
            vm.revertToState(snapshot);
        }
    }

    function test_cancel_from_inside_the_claim_finds_the_job_claimed() public {
        (bytes32 jobId, Draft memory d) = posted();
        ReentrantToken hostile = ReentrantToken(address(token));
        bytes memory sig = opSig(CLIENT_KEY, "Cancel", jobId, uint64(START));
        hostile.plan(address(jobs), abi.encodeCall(jobs.cancel, (terms(jobId), uint64(START), sig)));
        claim(jobId, d.paySig);
        vm.assertEq(hostile.successes(), 0);
        vm.assertEq(bytes32(bytes4(hostile.answer())), bytes32(IJobRegistry.NotCancellable.selector));
        assertState(jobId, IJobRegistry.State.Claimed, IJobRegistry.EndedBecause.NotEnded);
    }

    function assertShut(ReentrantToken hostile) private view {
        vm.assertEq(hostile.successes(), 0);
        bytes4 guard = bytes4(keccak256("ReentrancyGuardReentrantCall()"));
        vm.assertEq(bytes32(bytes4(hostile.answer())), bytes32(guard));
    }
}
