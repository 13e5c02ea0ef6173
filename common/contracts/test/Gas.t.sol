// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IssuedToken} from "../src/IssuedToken.sol";
import {IssuedTokenProxy} from "../src/IssuedTokenProxy.sol";
import {World} from "./World.sol";

/// What a relayer pays for each operation with a token like the real one: whole transactions, sent alone and by forty.
/// Run with `--isolate`, so that each call is a transaction; the figures are kept in snapshots/ and compared.
contract GasTest is World {
    uint256 private constant TOGETHER = 40;

    function makeToken() internal override returns (address) {
        address proxy = address(new IssuedTokenProxy(address(new IssuedToken()), address(0xAD)));
        IssuedToken(proxy).initialize(address(this), "Issued Dollar", "IUSD");
        return proxy;
    }

    /// A market that has been used: nobody's balance is the first of its kind.
    function setUp() public override {
        super.setUp();
        Draft memory d = draftOf("first");
        bytes32 jobId = post(d);
        claim(jobId, d.paySig);
        settle(jobId, 1000);
        d = draftOf("kept"); // somebody's money is always in escrow
        claim(post(d), d.paySig);
    }

    function test_alone() public {
        Draft memory d = draftOf("alone");
        keep(d);
        bytes32 jobId = idOf(client, d.order.c);
        run(address(jobs), postCall(d));
        vm.snapshotGasLastCall("alone", "post");
        (address to, bytes memory data) = claimCall(d);
        run(to, data);
        uint256 open = vm.snapshotState();
        vm.snapshotGasLastCall("alone", "claim");
        (to, data) = settleCall(jobId);
        run(to, data);
        vm.snapshotGasLastCall("alone", "settle");
        vm.revertToState(open);
        (to, data) = failCall(jobId);
        run(to, data);
        vm.snapshotGasLastCall("alone", "fail");
        vm.revertToState(open);
        vm.warp(time() + SLA + 1);
        run(address(jobs), abi.encodeCall(jobs.reclaim, (terms(jobId))));
        vm.snapshotGasLastCall("alone", "reclaim");
    }

    function test_together() public {
        Draft[] memory drafts = new Draft[](TOGETHER);
        bytes[] memory calls = new bytes[](TOGETHER);
        for (uint256 i = 0; i < TOGETHER; ++i) {
            Draft memory d = draftOf(bytes32(i));
            drafts[i] = d;
            keep(d);
            calls[i] = postCall(d);
        }
        relay("post", calls);
        for (uint256 i = 0; i < TOGETHER; ++i) {
            (, calls[i]) = claimCall(drafts[i]);
        }
        relay("claim", calls);
        uint256 claimed_ = vm.snapshotState();
        for (uint256 i = 0; i < TOGETHER; ++i) {
            (, calls[i]) = settleCall(idOf(client, bytes32(i)));
        }
        relay("settle", calls);
        vm.revertToState(claimed_);
        for (uint256 i = 0; i < TOGETHER; ++i) {
            (, calls[i]) = failCall(idOf(client, bytes32(i)));
        }
        relay("fail", calls);
    }

    function relay(string memory what, bytes[] memory calls) private {
        uint256 escrowed = jobs.escrowed();
        vm.recordLogs();
        run(address(jobs), abi.encodeCall(jobs.relay, (calls)));
        vm.snapshotValue("together", what, uint256(vm.lastCallGas().gasTotalUsed) / TOGETHER);
        vm.assertTrue(vm.getRecordedLogs().length >= TOGETHER, what);
        if (keccak256(bytes(what)) != keccak256("post")) vm.assertTrue(escrowed != jobs.escrowed(), what);
    }

    function run(address to, bytes memory data) private {
        vm.prank(relayer);
        (bool done,) = to.call(data);
        vm.assertTrue(done);
    }

    function postCall(Draft memory d) private view returns (bytes memory) {
        return abi.encodeCall(jobs.post, (d.order, d.owner, d.amount, d.taskCid, d.orderSig, d.paySig));
    }

    function claimCall(Draft memory d) private view returns (address, bytes memory) {
        bytes memory sig = opSig(PROVIDER_KEY, "Claim", idOf(client, d.order.c), uint64(time()));
        return (
            address(jobs),
            abi.encodeCall(jobs.claim, (terms(idOf(client, d.order.c)), uint64(time()), sig, d.paySig))
        );
    }

    function settleCall(bytes32 jobId) private view returns (address, bytes memory) {
        bytes memory sig = settleSig(PROVIDER_KEY, jobId, 1000, uint64(time()));
        return (address(jobs), abi.encodeCall(jobs.settle, (terms(jobId), 1000, uint64(time()), CID, sig)));
    }

    function failCall(bytes32 jobId) private view returns (address, bytes memory) {
        bytes memory sig = opSig(PROVIDER_KEY, "Fail", jobId, uint64(time()));
        return (address(jobs), abi.encodeCall(jobs.fail, (terms(jobId), uint64(time()), sig)));
    }
}
