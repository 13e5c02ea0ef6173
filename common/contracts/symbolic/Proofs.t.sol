// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {JobRegistry} from "../src/JobRegistry.sol";
import {JobWord, JobWords} from "../src/JobWord.sol";
import {Quotes} from "../src/Quotes.sol";
import {IRelayed} from "../src/interfaces/IRelayed.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";

/// What the proofs ask of the tool that runs them.
interface Vm {
    function assume(bool condition) external;
    function store(address account, bytes32 slot, bytes32 value) external;
    function prank(address sender) external;
    function warp(uint256 time) external;
}

interface Symbols {
    function createUint(uint256 bits, string calldata name) external returns (uint256);
    function createBool(string calldata name) external returns (bool);
}

/// A token that pays, or refuses whom it likes to refuse.
contract Purse {
    mapping(address => uint256) public balanceOf;
    mapping(address => bool) public refuses;

    function give(address to, uint256 amount) external {
        balanceOf[to] += amount;
    }

    function refuse(address to, bool yes) external {
        refuses[to] = yes;
    }

    function transfer(address to, uint256 amount) external returns (bool) {
        if (refuses[to]) return false;
        balanceOf[msg.sender] -= amount;
        balanceOf[to] += amount;
        return true;
    }

    function receiveWithAuthorization(
        address from,
        address to,
        uint256 amount,
        uint256,
        uint256,
        bytes32,
        uint8,
        bytes32,
        bytes32
    ) external {
        require(!refuses[to]);
        balanceOf[from] -= amount;
        balanceOf[to] += amount;
    }
}

/// A provider registry that has no objection.
contract Nodding {
    function jobClaimed(address, uint32, bool, uint32) external pure returns (bytes4, uint32) {
        return (0, 1);
    }

    function jobSettled(uint32, address, address, uint256) external {}
    function jobFailed(uint32, address, bool) external {}
    function jobReclaimed(uint32) external {}
}

/// From any state of the ledger in which the registry holds what it owes, for any amount, some or all of the units used,
/// and any party that the token refuses: one step keeps the registry able to pay, and moves exactly the job's amount to the
/// parties that the job names. Every history is made of such steps.
abstract contract Ledger {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));
    Symbols internal constant svm = Symbols(0xF3993A62377BCd56AE39D773740A5390411E8BC9);

    address internal constant OWNER = address(0xA11CE);
    address internal constant OPERATOR = address(0x0B0B);
    address internal constant TREASURY = address(0x74EA5);
    address internal constant BYSTANDER = address(0xB157);
    bytes32 internal constant C = "c";
    uint256 internal constant NOW = 1_800_000_000;
    // A million dollars for a job, 280 million in all, in a token of six decimals. Wider, a solver adds up no more.
    uint256 internal constant AMOUNT_BITS = 40;
    uint256 internal constant SUM_BITS = 48;

    // Where the registry keeps things; setUp would fail if it did not.
    uint256 private constant SUMS = 8;
    uint256 private constant CREDITS = 9;
    uint256 private constant JOBS = 11;

    Purse internal token;
    JobRegistry internal jobs;

    function setUp() public {
        vm.warp(NOW);
        token = new Purse();
        jobs = new JobRegistry(address(this), address(token), address(new Nodding()), TREASURY, type(uint128).max);
        jobs.setModel(1, "model", true, "", "");
    }

    struct Before {
        uint256 escrowed;
        uint256 credits;
        uint256 held;
        uint256 owners;
        uint256 operators;
        uint256 treasurys;
        uint256 bystanders;
    }

    function jobId() internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(OWNER, C));
    }

    /// A job of any amount (by its flat fee: products of unknowns are beyond the solver, and which numbers the prices are
    /// makes no difference to where they go), claimed by the provider or still open.
    function anyJob(bool claimed) internal returns (IJobRegistry.Posted memory posted) {
        posted.order = IJobRegistry.Order({
            c: C,
            modelId: 1,
            slaSecs: 3600,
            rateIn: 2e6,
            rateOut: 1e6,
            unitsIn: 10,
            unitsOut: 1000,
            designated: 0,
            expiresAt: uint64(NOW + 7200)
        });
        posted.owner = OWNER;
        posted.feeBps = 250;
        posted.gasFee = uint128(svm.createUint(AMOUNT_BITS, "gasFee"));
        JobWord word = JobWords.open(keccak256(abi.encode(posted)));
        if (claimed) word = word.claimed(1, NOW);
        vm.store(address(jobs), keccak256(abi.encode(jobId(), JOBS)), bytes32(JobWord.unwrap(word)));
        assert(jobs.job(jobId()).exists);
    }

    /// Any sums that the registry can pay.
    function anyLedger() internal returns (Before memory before) {
        before.escrowed = svm.createUint(SUM_BITS, "escrowed");
        before.credits = svm.createUint(SUM_BITS, "credits");
        before.held = svm.createUint(SUM_BITS + 1, "held");
        vm.assume(before.held >= before.escrowed + before.credits);
        vm.store(address(jobs), bytes32(SUMS), bytes32(before.escrowed | before.credits << 128));
        uint256 owed = svm.createUint(SUM_BITS, "credit of the owner");
        vm.assume(owed <= before.credits);
        vm.store(address(jobs), keccak256(abi.encode(OWNER, CREDITS)), bytes32(owed));
        assert(jobs.escrowed() == before.escrowed && jobs.totalCredits() == before.credits);
        assert(jobs.credit(OWNER) == owed);
        token.give(address(jobs), before.held);
        token.refuse(OWNER, svm.createBool("refuses the owner"));
        token.refuse(OPERATOR, svm.createBool("refuses the operator"));
        (before.owners, before.operators) = (wealth(OWNER), wealth(OPERATOR));
        (before.treasurys, before.bystanders) = (wealth(TREASURY), wealth(BYSTANDER));
    }

    /// What is an account's, wherever it is.
    function wealth(address account) internal view returns (uint256) {
        return token.balanceOf(account) + jobs.credit(account);
    }

    function amountOf(IJobRegistry.Posted memory posted) internal pure returns (uint256) {
        uint256 cap = Quotes.price(
            posted.order.rateIn, posted.order.rateOut, posted.order.unitsIn, posted.order.unitsOut
        );
        return Quotes.total(cap, posted.feeBps, posted.gasFee);
    }

    function assertAble() internal view {
        assert(token.balanceOf(address(jobs)) >= jobs.escrowed() + jobs.totalCredits());
    }

    /// An exit is refused for want of its sender's gas alone, or in a state that no history leads to.
    function assertStarved(bytes memory why, Before memory before, uint256 amount) internal pure {
        assert(bytes4(why) == IRelayed.CallStarved.selector || before.escrowed < amount);
    }

    function assertReleased(Before memory before, uint256 amount) internal view {
        assert(jobs.escrowed() + amount == before.escrowed);
        assert(jobs.job(jobId()).endedBecause != IJobRegistry.EndedBecause.NotEnded);
        uint256 had = before.owners + before.operators + before.treasurys;
        assert(wealth(OWNER) + wealth(OPERATOR) + wealth(TREASURY) == had + amount);
        assert(wealth(BYSTANDER) == before.bystanders);
        assertAble();
    }
}

contract ExitProofs is Ledger {
    function check_settle_splits_exactly_the_amount_among_the_three() public {
        IJobRegistry.Posted memory posted = anyJob(true);
        uint256 amount = amountOf(posted);
        Before memory before = anyLedger();
        uint32 used = [uint32(0), 1, 400, 1000][svm.createUint(2, "used")];
        vm.prank(OPERATOR);
        try jobs.settle(posted, used, 0, "cid", "") {
            assertReleased(before, amount);
        } catch {}
    }

    function check_fail_gives_the_owner_all_of_it() public {
        IJobRegistry.Posted memory posted = anyJob(true);
        uint256 amount = amountOf(posted);
        Before memory before = anyLedger();
        vm.prank(OPERATOR);
        try jobs.fail(posted, 0, "") {
            assertReleased(before, amount);
            assert(wealth(OWNER) == before.owners + amount);
        } catch (bytes memory why) {
            assertStarved(why, before, amount);
        }
    }

    function check_reclaim_gives_the_owner_all_of_it() public {
        IJobRegistry.Posted memory posted = anyJob(true);
        uint256 amount = amountOf(posted);
        Before memory before = anyLedger();
        vm.warp(NOW + 3601);
        vm.prank(BYSTANDER);
        try jobs.reclaim(posted) {
            assertReleased(before, amount);
            assert(wealth(OWNER) == before.owners + amount);
        } catch (bytes memory why) {
            assertStarved(why, before, amount);
        }
    }

    /// Whatever ended the job, nobody ends it again.
    function check_ended_job_pays_nothing_more() public {
        IJobRegistry.Posted memory posted = anyJob(true);
        Before memory before = anyLedger();
        vm.prank(OPERATOR);
        jobs.fail(posted, 0, "");
        before.escrowed = jobs.escrowed();
        before.held = token.balanceOf(address(jobs));
        vm.prank(OPERATOR);
        try jobs.fail(posted, 0, "") {
            assert(false);
        } catch {}
        vm.prank(OPERATOR);
        try jobs.settle(posted, 0, 0, "cid", "") {
            assert(false);
        } catch {}
        vm.warp(NOW + 3601);
        try jobs.reclaim(posted) {
            assert(false);
        } catch {}
        assert(jobs.escrowed() == before.escrowed && token.balanceOf(address(jobs)) == before.held);
    }

    function check_withdrawal_pays_its_party_alone() public {
        Before memory before = anyLedger();
        uint256 owed = jobs.credit(OWNER);
        vm.prank(BYSTANDER);
        try jobs.withdraw(OWNER) {
            assert(token.balanceOf(OWNER) == owed && jobs.credit(OWNER) == 0);
            assert(jobs.totalCredits() == before.credits - owed);
        } catch {
            assert(jobs.credit(OWNER) == owed && jobs.totalCredits() == before.credits);
        }
        assert(wealth(BYSTANDER) == before.bystanders && jobs.escrowed() == before.escrowed);
        assertAble();
    }
}

contract EntryProofs is Ledger {
    function check_claim_collects_exactly_the_amount_from_the_owner() public {
        IJobRegistry.Posted memory posted = anyJob(false);
        uint256 amount = amountOf(posted);
        Before memory before = anyLedger();
        token.refuse(OWNER, false);
        token.give(OWNER, svm.createUint(SUM_BITS, "the owner has"));
        uint256 had = wealth(OWNER);
        vm.prank(OPERATOR);
        try jobs.claim(posted, 0, "", new bytes(65)) {
            assert(jobs.escrowed() == before.escrowed + amount);
            assert(had - wealth(OWNER) == amount);
            assert(jobs.job(jobId()).state == IJobRegistry.State.Claimed);
        } catch {
            assert(wealth(OWNER) == had && jobs.escrowed() == before.escrowed);
        }
        assert(wealth(BYSTANDER) == before.bystanders && wealth(OPERATOR) == before.operators);
        assertAble();
    }
}

/// Whatever an admin sets, in whatever order of two: credits and sums stay, and a claimed job can be ended.
contract AdminProofs is Ledger {
    function check_admin_lowers_no_credit_and_stops_no_exit() public {
        IJobRegistry.Posted memory posted = anyJob(true);
        uint256 amount = amountOf(posted);
        Before memory before = anyLedger();
        vm.assume(before.escrowed >= amount);
        uint256 credit = jobs.credit(OWNER);
        meddle("first");
        meddle("second");
        assert(jobs.credit(OWNER) == credit);
        assert(jobs.escrowed() == before.escrowed && jobs.totalCredits() == before.credits);
        assert(token.balanceOf(address(jobs)) == before.held);
        vm.prank(OPERATOR);
        try jobs.fail(posted, 0, "") {
            assertReleased(before, amount);
        } catch (bytes memory why) {
            assertStarved(why, before, amount);
        }
    }

    /// Any admin call with any arguments; one that is refused changes nothing.
    function meddle(string memory name) private {
        uint256 what = svm.createUint(8, name);
        uint256 value = svm.createUint(128, name);
        address account = address(uint160(svm.createUint(160, name)));
        bool flag = svm.createBool(name);
        bytes memory call;
        if (what == 0) call = abi.encodeCall(jobs.setFees, (uint16(value), uint128(value)));
        else if (what == 1) call = abi.encodeCall(jobs.setSla, (uint32(value), flag));
        else if (what == 2) call = abi.encodeCall(jobs.setTokenGas, (uint32(value)));
        else if (what == 3) call = abi.encodeCall(jobs.setRelayer, (account, flag));
        else if (what == 4) call = abi.encodeCall(jobs.pause, ());
        else if (what == 5) call = abi.encodeCall(jobs.unpause, ());
        else if (what == 6) call = abi.encodeCall(jobs.setModel, (1, "model", flag, "", ""));
        else if (what == 7) call = abi.encodeCall(jobs.setTreasury, (BYSTANDER));
        else if (what == 8) call = abi.encodeCall(jobs.transferOwnership, (account));
        else if (what == 9) call = abi.encodeCall(jobs.renounceOwnership, ());
        else return;
        (bool done,) = address(jobs).call(call);
        done;
    }
}
