// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {DevToken} from "../src/DevToken.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {JobRegistry} from "../src/JobRegistry.sol";
import {Check} from "./Check.sol";
import {World} from "./World.sol";

/// A token with an issuer's powers that pays, lies, returns much data, burns gas or keeps a part, as configured.
contract MoodyToken is DevToken {
    enum Mood {
        Honest,
        AnswersFalse,
        AnswersNothing,
        FloodsWithRevertData,
        FloodsWithAnswer,
        BurnsAllGas,
        KeepsAPart
    }

    Mood public mood;

    constructor(address owner) DevToken(owner) {}

    function setMood(Mood newMood) external {
        mood = newMood;
    }

    function transfer(address to, uint256 value) public override returns (bool) {
        Mood now_ = mood;
        if (now_ == Mood.AnswersFalse) return false;
        if (now_ == Mood.FloodsWithRevertData) _flood(false);
        if (now_ == Mood.BurnsAllGas) {
            assembly {
                invalid()
            }
        }
        bool done = super.transfer(to, value);
        if (now_ == Mood.FloodsWithAnswer) _flood(true);
        if (now_ == Mood.AnswersNothing) {
            assembly {
                return(0, 0)
            }
        }
        return done;
    }

    function _update(address from, address to, uint256 value) internal override {
        super._update(from, to, value);
        if (mood == Mood.KeepsAPart && from != address(0) && to != address(0)) super._update(to, address(0xFEE), 1);
    }

    function _flood(bool answers) private pure {
        assembly {
            mstore(0, 1)
            switch answers
            case 0 { revert(0, 200000) }
            default { return(0, 200000) }
        }
    }
}

/// Acts at random for everyone under the Osaka rules. The token and the payers change their behaviour during the run.
contract HostileMarket is World {
    bytes32[] public ids;
    mapping(bytes32 => bytes) private _paySigs;
    mapping(bytes32 => uint256) private _amounts;
    address[4] private _parties;

    function begin() external {
        vm.setEvmVersion("osaka");
        World.setUp();
        _parties = [client, operator, rival, treasury];
    }

    function makeToken() internal override returns (address) {
        return address(new MoodyToken(address(this)));
    }

    function postJob(uint64 rateIn, uint64 rateOut, uint16 unitsIn, uint16 unitsOut) external {
        IJobRegistry.Order memory order = orderOf(bytes32(ids.length));
        (order.rateIn, order.rateOut, order.unitsIn, order.unitsOut) = (rateIn, rateOut, unitsIn, unitsOut);
        if (client.code.length != 0 || amountOf(order) > token.balanceOf(client)) return;
        Draft memory d = signed(order);
        bytes32 jobId = post(d);
        ids.push(jobId);
        (_paySigs[jobId], _amounts[jobId]) = (d.paySig, d.amount);
    }

    function claimJob(uint256 which, bool byRival) external {
        if (ids.length == 0) return;
        bytes32 jobId = ids[which % ids.length];
        vm.prank(byRival ? rival : operator);
        try jobs.claim(terms(jobId), 0, "", _paySigs[jobId]) {
            vm.assertEq(client.code.length, 0, "a payer with code paid");
        } catch {}
    }

    /// With any token and payer, a claimed job ends: by its provider, or by anyone after its deadline.
    function endJob(uint256 which, uint8 how, uint32 used) external {
        if (ids.length == 0) return;
        bytes32 jobId = ids[which % ids.length];
        IJobRegistry.Job memory job = jobs.job(jobId);
        if (job.state != IJobRegistry.State.Claimed) return;
        uint256 before = jobs.escrowed();
        bool late = time() > job.claimedAt + SLA;
        address claimer = providers.operatorOf(job.providerId);
        if (late && how % 2 == 0) {
            jobs.reclaim{gas: 3_000_000}(terms(jobId));
        } else if (late || how % 3 == 0) {
            vm.prank(claimer);
            jobs.fail{gas: 3_000_000}(terms(jobId), 0, "");
        } else {
            used = uint32(bound(used, 0, terms(jobId).order.unitsOut));
            vm.prank(claimer);
            jobs.settle{gas: 3_000_000}(terms(jobId), used, 0, CID, "");
        }
        vm.assertEq(before - jobs.escrowed(), _amounts[jobId], "released");
        vm.assertTrue(jobs.job(jobId).endedBecause != IJobRegistry.EndedBecause.NotEnded, "ended");
    }

    function withdrawCredit(uint8 who) external {
        address party = _parties[who % 4];
        uint256 owed = jobs.credit(party);
        uint256 held = token.balanceOf(address(jobs));
        try jobs.withdraw(party) {
            vm.assertEq(held - token.balanceOf(address(jobs)), owed, "withdrawn");
        } catch {
            vm.assertEq(jobs.credit(party), owed, "kept");
        }
    }

    function changeTheToken(uint8 mood, uint8 who, bool shutOut, bool paused) external {
        MoodyToken(address(token)).setMood(MoodyToken.Mood(mood % 7));
        token.setBlacklisted(_parties[who % 4], shutOut && who % 3 == 0);
        if (paused != token.paused()) paused ? token.pause() : token.unpause();
    }

    function shutTheRegistryOut(bool out) external {
        token.setBlacklisted(address(jobs), out);
    }

    /// The payer delegates to some code (EIP-7702), or removes the delegation.
    function delegate(bool on) external {
        vm.etch(client, on ? abi.encodePacked(hex"ef0100", address(token)) : bytes(""));
    }

    function administer(uint8 what, uint16 feeBps, uint64 gasFee) external {
        if (what % 4 == 0) jobs.setFees(uint16(bound(feeBps, 0, 2000)), uint128(bound(gasFee, 0, MOST_GAS_FEE)));
        if (what % 4 == 1) jobs.setTokenGas(uint32(bound(gasFee, 200_000, 300_000)));
        if (what % 4 == 2) providers.setPointPrice(gasFee);
        if (what % 4 == 3) jobs.setTreasury(_parties[feeBps % 4]);
    }

    function letTimePass(uint16 secs) external {
        vm.warp(time() + secs);
    }

    function inEscrow() external view returns (uint256 sum) {
        for (uint256 i = 0; i < ids.length; ++i) {
            if (jobs.job(ids[i]).state == IJobRegistry.State.Claimed) sum += _amounts[ids[i]];
        }
    }

    function world() external view returns (address, address, address[4] memory) {
        return (address(jobs), address(token), _parties);
    }
}

contract HostileMarketTest is Check {
    HostileMarket private _market;

    function setUp() public {
        _market = new HostileMarket();
        _market.begin();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(_market);
    }

    function invariant_registry_can_pay_what_it_owes_and_escrows_what_was_claimed() public view {
        (address at, address token, address[4] memory parties) = _market.world();
        JobRegistry jobs = JobRegistry(at);
        vm.assertGe(DevToken(token).balanceOf(at), jobs.escrowed() + jobs.totalCredits());
        vm.assertEq(jobs.escrowed(), _market.inEscrow(), "escrowed");
        uint256 credits = 0;
        for (uint256 i = 0; i < 4; ++i) {
            credits += jobs.credit(parties[i]);
        }
        vm.assertEq(credits, jobs.totalCredits(), "credits");
    }
}
