// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {IssuedToken} from "../src/IssuedToken.sol";
import {IssuedTokenProxy} from "../src/IssuedTokenProxy.sol";
import {IRelayed} from "../src/interfaces/IRelayed.sol";
import {Vm} from "./Check.sol";
import {World} from "./World.sol";

/// Relayer's cost of each operation with a realistic token: whole transactions, with one operation and with forty.
/// Run with `--isolate`, so that each call is a transaction. The figures are compared with those in snapshots/.
contract GasTest is World {
    uint256 private constant TOGETHER = 40;

    function makeToken() internal override returns (address) {
        address proxy = address(new IssuedTokenProxy(address(new IssuedToken()), address(0xAD)));
        IssuedToken(proxy).initialize(address(this), "Issued Dollar", "IUSD");
        return proxy;
    }

    /// A used market: no balance is written for the first time.
    function setUp() public override {
        super.setUp();
        Draft memory d = draftOf("first");
        bytes32 jobId = post(d);
        claim(jobId, d.paySig);
        settle(jobId, 1000);
        d = draftOf("kept"); // some money is always in escrow
        claim(post(d), d.paySig);
    }

    function test_alone() public {
        Draft memory d = draftOf("alone");
        keep(d);
        uint256 start = vm.snapshotState();
        Draft[] memory one = new Draft[](1);
        one[0] = d;
        uint256 chained = alone("chained", abi.encodeCall(jobs.relay, (chainedCalls(one))));
        vm.snapshotValue("alone", "life", chained + alone("settle", settleCall(d)));
        vm.revertToState(start);
        alone("post", postCall(d));
        alone("claim", claimCall(d));
        uint256 open = vm.snapshotState();
        alone("fail", failCall(d));
        vm.revertToState(open);
        vm.warp(time() + SLA + 1);
        alone("reclaim", abi.encodeCall(jobs.reclaim, (terms(idOf(client, d.order.c)))));
    }

    function alone(string memory what, bytes memory call) private returns (uint256 used) {
        run(address(jobs), call);
        used = vm.lastCallGas().gasTotalUsed;
        vm.snapshotValue("alone", what, used);
    }

    function test_one_client() public {
        measure("one_client", 1, false);
    }

    function test_forty_clients() public {
        measure("forty_clients", TOGETHER, false);
    }

    /// Each client has exactly the cost of its job: the claim empties the balance, and the refund fills a new slot.
    function test_forty_emptied_clients() public {
        measure("forty_emptied_clients", TOGETHER, true);
    }

    /// Every operation in relays of forty. `chained`: a post and its claim in one relay. `life`: both, and a settle.
    function measure(string memory group, uint256 clients, bool emptied) private {
        Draft[] memory drafts = new Draft[](TOGETHER);
        for (uint256 i = 0; i < TOGETHER; ++i) {
            uint256 key = clients == 1 ? CLIENT_KEY : 0xC0FFEE + i;
            drafts[i] = draftBy(key, bytes32(i));
            uint256 funds = emptied ? drafts[i].amount : 1e12;
            if (clients != 1) token.mint(vm.addr(key), funds);
            keep(drafts[i]);
        }
        uint256 start = vm.snapshotState();
        uint256 chained = relay(group, "chained", chainedCalls(drafts));
        uint256 settled = relay(group, "settle", callsOf(drafts, this.settleCall));
        vm.snapshotValue(group, "life", chained + settled);
        vm.revertToState(start);
        relay(group, "post", callsOf(drafts, this.postCall));
        relay(group, "claim", callsOf(drafts, this.claimCall));
        relay(group, "fail", callsOf(drafts, this.failCall));
    }

    function chainedCalls(Draft[] memory drafts) private view returns (bytes[] memory calls) {
        calls = new bytes[](2 * drafts.length);
        for (uint256 i = 0; i < drafts.length; ++i) {
            bytes32 jobId = idOf(drafts[i].owner, drafts[i].order.c);
            calls[2 * i] = postCall(drafts[i]);
            bytes memory sig = opSig(PROVIDER_KEY, "Claim", jobId, uint64(time()));
            calls[2 * i + 1] = abi.encodeCall(jobs.claimPosted, (jobId, uint64(time()), sig));
        }
    }

    function callsOf(Draft[] memory drafts, function(Draft memory) external view returns (bytes memory) call)
        private
        view
        returns (bytes[] memory calls)
    {
        calls = new bytes[](TOGETHER);
        for (uint256 i = 0; i < TOGETHER; ++i) {
            calls[i] = call(drafts[i]);
        }
    }

    function relay(string memory group, string memory what, bytes[] memory calls) private returns (uint256 each) {
        vm.recordLogs();
        run(address(jobs), abi.encodeCall(jobs.relay, (calls)));
        each = uint256(vm.lastCallGas().gasTotalUsed) / TOGETHER;
        vm.snapshotValue(group, what, each);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        vm.assertTrue(logs.length >= calls.length, what);
        for (uint256 i = 0; i < logs.length; ++i) {
            vm.assertTrue(logs[i].topics[0] != IRelayed.CallRefused.selector, what);
        }
    }

    function run(address to, bytes memory data) private {
        vm.prank(relayer);
        (bool done,) = to.call(data);
        vm.assertTrue(done);
    }

    function draftBy(uint256 key, bytes32 c) private view returns (Draft memory) {
        IJobRegistry.Order memory order = orderOf(c);
        address owner = vm.addr(key);
        uint256 amount = amountOf(order);
        bytes memory paySig = sign(key, paymentDigest(owner, amount, order.expiresAt, idOf(owner, c)));
        return Draft(order, owner, amount, CID, sign(key, orderDigest(order)), paySig);
    }

    function postCall(Draft memory d) public view returns (bytes memory) {
        return abi.encodeCall(jobs.post, (d.order, d.owner, d.amount, d.taskCid, d.orderSig, d.paySig));
    }

    function claimCall(Draft memory d) public view returns (bytes memory) {
        bytes32 jobId = idOf(d.owner, d.order.c);
        bytes memory sig = opSig(PROVIDER_KEY, "Claim", jobId, uint64(time()));
        return abi.encodeCall(jobs.claim, (terms(jobId), uint64(time()), sig, d.paySig));
    }

    function settleCall(Draft memory d) public view returns (bytes memory) {
        bytes32 jobId = idOf(d.owner, d.order.c);
        bytes memory sig = settleSig(PROVIDER_KEY, jobId, 1000, uint64(time()));
        return abi.encodeCall(jobs.settle, (terms(jobId), 1000, uint64(time()), CID, sig));
    }

    function failCall(Draft memory d) public view returns (bytes memory) {
        bytes32 jobId = idOf(d.owner, d.order.c);
        bytes memory sig = opSig(PROVIDER_KEY, "Fail", jobId, uint64(time()));
        return abi.encodeCall(jobs.fail, (terms(jobId), uint64(time()), sig));
    }
}
