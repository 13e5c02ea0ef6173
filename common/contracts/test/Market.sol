// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {Vm} from "./Check.sol";
import {World} from "./World.sol";

/// Acts at random for everyone in the market, keeps accounts from the events, and expects every rejection.
contract Market is World {
    bytes32[] public ids;
    mapping(bytes32 => bytes) private _paySigs;
    mapping(bytes32 => uint256) public collectedFor;
    mapping(bytes32 => uint256) public finalEvents;
    mapping(bytes32 => uint256) public claims;

    uint256 public collected;
    uint256 public toProviders;
    uint256 public toTreasury;
    uint256 public toOwners;
    uint256 public donated;

    address[4] private _parties;

    function begin() external {
        World.setUp();
        _parties = [client, operator, rival, treasury];
    }

    function postJob(uint64 rateIn, uint64 rateOut, uint16 unitsIn, uint16 unitsOut, uint8 to) external {
        IJobRegistry.Order memory order = orderOf(bytes32(ids.length));
        (order.rateIn, order.rateOut, order.unitsIn, order.unitsOut) = (rateIn, rateOut, unitsIn, unitsOut);
        order.designated = to % 4 == 0 ? providerId : 0;
        if (amountOf(order) > token.balanceOf(client)) return;
        Draft memory d = signed(order);
        if (jobs.paused()) {
            vm.prank(relayer);
            vm.expectRevert();
            jobs.post(d.order, d.owner, d.amount, d.taskCid, d.orderSig, d.paySig);
            return;
        }
        bytes32 jobId = post(d);
        ids.push(jobId);
        _paySigs[jobId] = d.paySig;
    }

    function claimJob(uint256 which, bool byRival) external {
        if (ids.length == 0) return;
        bytes32 jobId = ids[which % ids.length];
        address account = byRival ? rival : operator;
        bool fine = jobs.claimRefusal(terms(jobId), account) == 0 && !jobs.paused() && !token.paused()
            && !token.blacklisted(client) && token.balanceOf(client) >= amountFor(jobId);
        uint256 before = token.balanceOf(address(jobs));
        vm.prank(account);
        if (!fine) vm.expectRevert();
        jobs.claim(terms(jobId), 0, "", _paySigs[jobId]);
        if (!fine) return;
        claims[jobId] += 1;
        collectedFor[jobId] = token.balanceOf(address(jobs)) - before;
        collected += collectedFor[jobId];
    }

    function settleJob(uint256 which, uint32 used) external {
        if (ids.length == 0) return;
        bytes32 jobId = ids[which % ids.length];
        IJobRegistry.Job memory job = jobs.job(jobId);
        used = uint32(bound(used, 0, terms(jobId).order.unitsOut));
        bool fine = job.state == IJobRegistry.State.Claimed && time() <= job.claimedAt + SLA;
        vm.recordLogs();
        vm.prank(claimerOf(job));
        if (!fine) vm.expectRevert();
        jobs.settle(terms(jobId), used, 0, CID, "");
        if (fine) keepBooks(jobId);
    }

    function failJob(uint256 which) external {
        if (ids.length == 0) return;
        bytes32 jobId = ids[which % ids.length];
        IJobRegistry.Job memory job = jobs.job(jobId);
        bool fine = job.state == IJobRegistry.State.Claimed;
        vm.recordLogs();
        vm.prank(claimerOf(job));
        if (!fine) vm.expectRevert();
        jobs.fail(terms(jobId), 0, "");
        if (fine) keepBooks(jobId);
    }

    function reclaimJob(uint256 which) external {
        if (ids.length == 0) return;
        bytes32 jobId = ids[which % ids.length];
        IJobRegistry.Job memory job = jobs.job(jobId);
        bool fine = job.state == IJobRegistry.State.Claimed && time() > job.claimedAt + SLA;
        vm.recordLogs();
        if (!fine) vm.expectRevert();
        jobs.reclaim(terms(jobId));
        if (fine) keepBooks(jobId);
    }

    function cancelJob(uint256 which) external {
        if (ids.length == 0) return;
        bytes32 jobId = ids[which % ids.length];
        bool fine = jobs.job(jobId).state != IJobRegistry.State.Claimed;
        vm.recordLogs();
        vm.prank(client);
        if (!fine) vm.expectRevert();
        jobs.cancel(terms(jobId), 0, "");
        if (fine) keepBooks(jobId);
    }

    function withdrawCredit(uint8 who) external {
        address party = _parties[who % 4];
        bool fine = jobs.credit(party) > 0 && !token.paused() && !token.blacklisted(party);
        if (!fine) vm.expectRevert();
        jobs.withdraw(party);
    }

    function letTimePass(uint16 secs) external {
        vm.warp(time() + secs);
    }

    function changeTheRules(uint16 feeBps, uint64 gasFee, bool paused) external {
        jobs.setFees(uint16(bound(feeBps, 0, 2000)), uint128(bound(gasFee, 0, MOST_GAS_FEE)));
        if (paused != jobs.paused()) paused ? jobs.pause() : jobs.unpause();
    }

    function troubleTheToken(uint8 who, bool shutOut, bool paused) external {
        token.setBlacklisted(_parties[who % 4], shutOut);
        if (paused != token.paused()) paused ? token.pause() : token.unpause();
    }

    function calmTheToken() external {
        for (uint256 i = 0; i < 4; ++i) {
            token.setBlacklisted(_parties[i], false);
        }
        if (token.paused()) token.unpause();
        if (jobs.paused()) jobs.unpause();
    }

    function donate(uint16 amount) external {
        if (token.paused()) return;
        token.mint(address(jobs), amount);
        donated += amount;
    }

    function count() external view returns (uint256) {
        return ids.length;
    }

    function world() external view returns (address, address, address) {
        return (address(jobs), address(token), address(providers));
    }

    function parties() external view returns (address[4] memory) {
        return _parties;
    }

    /// Token flows by the registry's events. The invariants compare them with the token's balances.
    function keepBooks(bytes32 jobId) private {
        Vm.Log[] memory logs = vm.getRecordedLogs();
        for (uint256 i = 0; i < logs.length; ++i) {
            if (logs[i].emitter != address(jobs)) continue;
            bytes32 topic = logs[i].topics[0];
            if (topic == IJobRegistry.PayoutCredited.selector) continue;
            vm.assertEq(logs[i].topics[1], jobId);
            finalEvents[jobId] += 1;
            if (topic == IJobRegistry.JobSettled.selector) {
                (, uint256 cost, uint256 share, uint256 refund,) =
                    abi.decode(logs[i].data, (uint32, uint256, uint256, uint256, string));
                vm.assertEq(cost + share + refund, collectedFor[jobId], "settled to the unit");
                toProviders += cost;
                toTreasury += share;
                toOwners += refund;
            } else {
                toOwners += collectedFor[jobId]; // 0 for a cancelled job
            }
        }
    }

    function claimerOf(IJobRegistry.Job memory job) private view returns (address) {
        return job.providerId == 0 ? operator : providers.operatorOf(job.providerId);
    }

    function amountFor(bytes32 jobId) private view returns (uint256) {
        IJobRegistry.Posted memory of_ = terms(jobId);
        return capOf(of_.order) + capOf(of_.order) * of_.feeBps / 10_000 + of_.gasFee;
    }
}
