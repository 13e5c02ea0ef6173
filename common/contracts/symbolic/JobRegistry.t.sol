// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {JobRegistry} from "../src/JobRegistry.sol";
import {JobWord, JobWords} from "../src/JobWord.sol";
import {Quotes} from "../src/Quotes.sol";
import {IRelayed} from "../src/interfaces/IRelayed.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {Proof, Symbols} from "./Proof.sol";

/// A token that pays, or refuses any account.
contract Purse {
    bytes32 public constant DOMAIN_SEPARATOR = "purse";
    mapping(address => uint256) public balanceOf;
    mapping(address => bool) public refuses;

    function give(address to, uint256 amount) external {
        balanceOf[to] += amount;
    }

    function refuse(address to, bool yes) external {
        refuses[to] = yes;
    }

    function authorizationState(address, bytes32) external pure returns (bool) {
        return false;
    }

    function transfer(address to, uint256 amount) external returns (bool) {
        if (refuses[to]) return false;
        move(msg.sender, to, amount);
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
        move(from, to, amount);
    }

    function move(address from, address to, uint256 amount) private {
        balanceOf[from] -= amount;
        unchecked {
            balanceOf[to] += amount; // all there is fits
        }
    }
}

/// A provider registry that returns any answer to a claim.
contract Oracle {
    Symbols private constant svm = Symbols(0xF3993A62377BCd56AE39D773740A5390411E8BC9);

    function jobClaimed(address, uint32, bool, uint32) external returns (bytes4, uint32) {
        uint32 refusal = uint32(svm.createUint(32, "refusal"));
        return (bytes4(refusal), uint32(svm.createUint(32, "provider")));
    }

    function jobSettled(uint32, address, address, uint256) external {}
    function jobFailed(uint32, address, bool, bool) external {}
    function jobReclaimed(uint32) external {}
}

/// Start from any state in which the registry holds what it owes, with any settings, any order, and any party that the
/// token refuses. Then one step keeps the registry able to pay, and moves exactly the job's amount to the parties that
/// the job names. Every history consists of such steps.
/// A state is built from its parts (payment of the job, payments of other jobs, a credit, other credits, a surplus), so
/// that the solver sees equal sums as the same expression.
abstract contract Ledger is Proof {
    bytes32 internal constant C = "c";
    // More than all money of the world in any token's smallest unit, and small enough for sums in 128 bits.
    uint256 internal constant SUM_BITS = 120;

    // Storage slots of the registry. The proofs fail if they are wrong.
    uint256 private constant OWNERSHIP = 2;
    uint256 internal constant RELAYERS = 4;
    uint256 private constant FEES = 5;
    uint256 internal constant MODELS = 6;
    uint256 internal constant SLAS = 7;
    uint256 internal constant SUMS = 8;
    uint256 private constant CREDITS = 9;
    uint256 private constant SETTINGS = 10;
    uint256 private constant JOBS = 11;

    Purse internal token;
    JobRegistry internal jobs;

    function setUp() public {
        vm.warp(NOW);
        token = new Purse();
        jobs = new JobRegistry(address(this), address(token), makeProviders(), TREASURY, type(uint128).max);
    }

    function makeProviders() internal virtual returns (address) {
        return address(new Oracle());
    }

    struct Before {
        uint256 escrowed;
        uint256 credits;
        uint256 held;
        uint256 owners;
        uint256 operators;
        uint256 treasurys;
    }

    function jobId() internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(OWNER, C));
    }

    /// An order posted an hour ago, with any amount (through its flat fee).
    function anyAmount() internal returns (IJobRegistry.Posted memory posted) {
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
        posted.gasFee = uint128(svm.createUint(SUM_BITS, "gasFee"));
    }

    /// Any order at any prices.
    function anyOrder() internal returns (IJobRegistry.Posted memory posted) {
        posted = anyAmount();
        posted.order.rateIn = uint128(svm.createUint(128, "rateIn"));
        posted.order.rateOut = uint128(svm.createUint(128, "rateOut"));
        posted.order.unitsIn = uint32(svm.createUint(32, "unitsIn"));
        posted.order.unitsOut = uint32(svm.createUint(32, "unitsOut"));
        posted.feeBps = uint16(svm.createUint(16, "feeBps"));
    }

    function store(IJobRegistry.Posted memory posted, bool claimed) internal {
        JobWord word = JobWords.open(keccak256(abi.encode(posted)));
        storeWord(claimed ? word.claimed(1, NOW) : word);
    }

    function storeWord(JobWord word) internal {
        vm.store(address(jobs), keccak256(abi.encode(jobId(), JOBS)), bytes32(JobWord.unwrap(word)));
    }

    /// Any sums that the registry can pay, with `escrowed` for the job, and any settings. The token refuses the owner,
    /// the operator, both or neither.
    function anyLedger(uint256 escrowed) internal returns (Before memory before) {
        unchecked {
            uint256 owed = svm.createUint(SUM_BITS, "credit of the owner");
            before.escrowed = escrowed + svm.createUint(SUM_BITS, "payments of other jobs");
            before.credits = owed + svm.createUint(SUM_BITS, "credits of others");
            before.held = before.escrowed + before.credits + svm.createUint(SUM_BITS, "sent by mistake");
            vm.store(address(jobs), bytes32(SUMS), bytes32(uint256(uint128(before.escrowed)) | before.credits << 128));
            vm.store(address(jobs), keccak256(abi.encode(OWNER, CREDITS)), bytes32(owed));
            assert(jobs.escrowed() == before.escrowed && jobs.totalCredits() == before.credits);
            assert(jobs.credit(OWNER) == owed);
            token.give(address(jobs), before.held);
            token.refuse(OWNER, svm.createBool("refuses the owner"));
            token.refuse(OPERATOR, svm.createBool("refuses the operator"));
            (before.owners, before.operators) = (wealth(OWNER), wealth(OPERATOR));
            before.treasurys = wealth(TREASURY);
            anySettings();
        }
    }

    function anySettings() private {
        uint256 tokenGas = svm.createUint(32, "tokenGas");
        vm.assume(tokenGas >= 200_000 && tokenGas <= 2_000_000);
        uint256 paused = svm.createUint(1, "paused");
        vm.store(
            address(jobs), bytes32(SETTINGS), bytes32(uint160(TREASURY) | tokenGas << 160 | paused << 192)
        );
        vm.store(address(jobs), bytes32(OWNERSHIP), bytes32(svm.createUint(160, "admin")));
        vm.store(address(jobs), bytes32(FEES), bytes32(svm.createUint(144, "fees")));
        vm.store(address(jobs), keccak256(abi.encode(1, MODELS)), bytes32(svm.createUint(1, "enabled")));
        vm.store(address(jobs), keccak256(abi.encode(3600, SLAS)), bytes32(svm.createUint(1, "sla")));
        assert(jobs.treasury() == TREASURY && jobs.tokenGas() == tokenGas);
    }

    /// Everything that belongs to an account: its balance and its credit.
    function wealth(address account) internal view returns (uint256) {
        unchecked {
            return token.balanceOf(account) + jobs.credit(account);
        }
    }

    function amountOf(IJobRegistry.Posted memory posted) internal pure returns (uint256) {
        return Quotes.total(capOf(posted), posted.feeBps, posted.gasFee);
    }

    function capOf(IJobRegistry.Posted memory posted) internal pure returns (uint256) {
        return Quotes.price(posted.order.rateIn, posted.order.rateOut, posted.order.unitsIn, posted.order.unitsOut);
    }

    function assertAble() internal view {
        unchecked {
            assert(token.balanceOf(address(jobs)) >= jobs.escrowed() + jobs.totalCredits());
        }
    }

    /// An exit is refused only when its sender provides too little gas.
    function assertStarved(bytes memory why) internal pure {
        assert(bytes4(why) == IRelayed.CallStarved.selector);
    }

    function assertUntouched(Before memory before) internal view {
        assert(jobs.escrowed() == before.escrowed && jobs.totalCredits() == before.credits);
        assert(token.balanceOf(address(jobs)) == before.held);
        assert(wealth(OWNER) == before.owners && wealth(OPERATOR) == before.operators);
        assert(wealth(TREASURY) == before.treasurys && wealth(BYSTANDER) == 0);
    }

    function assertReleased(Before memory before, uint256 amount) internal view {
        unchecked {
            assert(jobs.escrowed() + amount == before.escrowed);
            assert(jobs.job(jobId()).endedBecause != IJobRegistry.EndedBecause.NotEnded);
            uint256 had = before.owners + before.operators + before.treasurys;
            assert(wealth(OWNER) + wealth(OPERATOR) + wealth(TREASURY) == had + amount);
            assert(wealth(BYSTANDER) == 0);
            assertAble();
        }
    }

    function assertRefunded(Before memory before, uint256 amount) internal view {
        unchecked {
            assertReleased(before, amount);
            assert(wealth(OWNER) == before.owners + amount);
        }
    }
}

contract ExitProofs is Ledger {
    /// Products of unknowns are replaced by any numbers for which the used units cost at least 1 and at most as much as
    /// the ordered units. tests/contracts/prices.py proves that this holds. The fee is flat here, because halmos does
    /// not finish in seven minutes with a percentage of such numbers. The next two proofs have a percentage.
    function check_settle_splits_exactly_the_amount_among_the_three() public {
        IJobRegistry.Posted memory posted = anyOrder();
        posted.feeBps = 0;
        uint32 used = uint32(svm.createUint(32, "used"));
        vm.assume(used <= posted.order.unitsOut);
        assumePriced(posted, posted.order.unitsOut);
        assumePriced(posted, used);
        settle(posted, used);
    }

    function check_settle_with_any_percentage_splits_it_as_exactly() public {
        IJobRegistry.Posted memory posted = anyAmount();
        posted.feeBps = uint16(svm.createUint(16, "feeBps"));
        settle(posted, 400);
    }

    function check_settle_of_an_order_without_rates_splits_it_as_exactly() public {
        IJobRegistry.Posted memory posted = anyAmount();
        (posted.order.rateIn, posted.order.rateOut) = (0, 0);
        posted.feeBps = uint16(svm.createUint(16, "feeBps"));
        settle(posted, 400);
    }

    /// Assume that the units cost something. Without rates or units the price is 1.
    function assumePriced(IJobRegistry.Posted memory posted, uint32 unitsOut) private {
        unchecked {
            vm.assume(
                uint256(posted.order.rateIn) * posted.order.unitsIn + uint256(posted.order.rateOut) * unitsOut != 0
            );
        }
    }

    function settle(IJobRegistry.Posted memory posted, uint32 used) private {
        unchecked {
            uint256 amount = amountOf(posted);
            uint256 cost = Quotes.price(posted.order.rateIn, posted.order.rateOut, posted.order.unitsIn, used);
            uint256 fee = Quotes.fee(cost, posted.feeBps);
            uint256 share = fee + posted.gasFee;
            vm.assume(amount < 1 << SUM_BITS && cost != 0 && cost <= amount);
            vm.assume(fee <= amount && share <= amount - cost);
            store(posted, true);
            Before memory before = anyLedger(amount);
            vm.prank(OPERATOR);
            try jobs.settle(posted, used, 0, "cid", "") {
                assertReleased(before, amount);
                assert(wealth(OPERATOR) == before.operators + cost);
                assert(wealth(TREASURY) == before.treasurys + share);
            } catch (bytes memory why) {
                assertStarved(why);
            }
        }
    }

    function check_fail_gives_the_owner_all_of_it() public {
        IJobRegistry.Posted memory posted = anyAmount();
        uint256 amount = amountOf(posted);
        store(posted, true);
        Before memory before = anyLedger(amount);
        vm.prank(OPERATOR);
        try jobs.fail(posted, 0, "") {
            assertRefunded(before, amount);
        } catch (bytes memory why) {
            assertStarved(why);
        }
    }

    function check_reclaim_gives_the_owner_all_of_it() public {
        IJobRegistry.Posted memory posted = anyAmount();
        uint256 amount = amountOf(posted);
        store(posted, true);
        Before memory before = anyLedger(amount);
        vm.warp(NOW + 3601);
        vm.prank(BYSTANDER);
        try jobs.reclaim(posted) {
            assertRefunded(before, amount);
        } catch (bytes memory why) {
            assertStarved(why);
        }
    }

    /// No ended job can be claimed or ended again.
    function check_ended_job_pays_nothing_more() public {
        IJobRegistry.Posted memory posted = anyAmount();
        Before memory before = anyLedger(0);
        uint256 reason = svm.createUint(64, "reason");
        vm.assume(reason >= 1 && reason <= 4);
        storeWord(JobWord.wrap(reason << 64 | svm.createUint(64, "provider and time")));
        uint256 what = svm.createUint(8, "what");
        vm.warp(NOW + svm.createUint(32, "later"));
        vm.prank(OPERATOR);
        if (what == 0) try jobs.fail(posted, 0, "") { assert(false); } catch {}
        else if (what == 1) try jobs.settle(posted, 0, 0, "cid", "") { assert(false); } catch {}
        else if (what == 2) try jobs.reclaim(posted) { assert(false); } catch {}
        else if (what == 3) try jobs.claim(posted, 0, "", new bytes(65)) { assert(false); } catch {}
        assertUntouched(before);
    }

    function check_withdrawal_pays_its_party_alone() public {
        unchecked {
            Before memory before = anyLedger(0);
            uint256 owed = jobs.credit(OWNER);
            vm.prank(BYSTANDER);
            try jobs.withdraw(OWNER) {
                assert(token.balanceOf(OWNER) == owed && jobs.credit(OWNER) == 0);
                assert(jobs.totalCredits() == before.credits - owed && jobs.escrowed() == before.escrowed);
                assert(wealth(BYSTANDER) == 0);
                assertAble();
            } catch {
                assertUntouched(before);
                assert(owed == 0 || token.refuses(OWNER));
            }
        }
    }
}

contract EntryProofs is Ledger {
    function check_claim_collects_exactly_the_amount_from_the_owner() public {
        unchecked {
            IJobRegistry.Posted memory posted = anyAmount();
            uint256 amount = amountOf(posted);
            store(posted, false);
            Before memory before = anyLedger(0);
            token.give(OWNER, svm.createUint(SUM_BITS, "the owner has"));
            before.owners = wealth(OWNER);
            vm.prank(OPERATOR);
            try jobs.claim(posted, 0, "", new bytes(65)) {
                assert(jobs.escrowed() == before.escrowed + amount && jobs.totalCredits() == before.credits);
                assert(wealth(OWNER) + amount == before.owners);
                assert(jobs.job(jobId()).state == IJobRegistry.State.Claimed);
                assert(wealth(BYSTANDER) == 0 && wealth(OPERATOR) == before.operators);
                assertAble();
            } catch {
                assertUntouched(before);
            }
        }
    }

    function check_second_claim_is_refused() public {
        IJobRegistry.Posted memory posted = anyAmount();
        store(posted, true);
        Before memory before = anyLedger(amountOf(posted));
        token.give(OWNER, 1 << SUM_BITS); // its payment would be taken once more
        token.give(OWNER, amountOf(posted));
        before.owners = wealth(OWNER);
        vm.prank(OPERATOR);
        try jobs.claim(posted, 0, "", new bytes(65)) {
            assert(false);
        } catch {}
        assertUntouched(before);
    }

    function check_cancel_moves_nothing_and_spares_a_claimed_job() public {
        IJobRegistry.Posted memory posted = anyAmount();
        bool claimed = svm.createBool("claimed");
        store(posted, claimed);
        Before memory before = anyLedger(0);
        vm.prank(svm.createBool("the owner") ? OWNER : BYSTANDER);
        try jobs.cancel(posted, 0, "") {
            assert(!claimed);
        } catch {}
        assertUntouched(before);
    }

    /// An accepted post creates an open job. An existing job cannot be posted again.
    function check_post_moves_nothing_and_replaces_no_job() public {
        IJobRegistry.Posted memory posted = anyAmount();
        bool exists = svm.createBool("exists");
        if (exists) store(posted, true);
        Before memory before = anyLedger(0);
        token.give(OWNER, 1 << SUM_BITS);
        before.owners = wealth(OWNER);
        bytes memory orderSig = svm.createBytes(65, "orderSig");
        bytes memory paySig = svm.createBytes(65, "paySig");
        uint256 amount = svm.createUint(128, "amount");
        vm.prank(OWNER);
        try jobs.post(posted.order, OWNER, amount, "cid", orderSig, paySig) {
            assert(!exists);
        } catch {}
        assertUntouched(before);
    }
}

/// No admin call moves money, with any arguments. The proofs of the exits hold for any settings, so no setting stops an
/// exit.
contract AdminProofs is Ledger {
    function check_admin_call_touches_no_money() public {
        IJobRegistry.Posted memory posted = anyAmount();
        store(posted, true);
        Before memory before = anyLedger(amountOf(posted));
        (bool done,) = address(jobs).call(anyCall());
        done; // one that is refused changes nothing
        assertUntouched(before);
        assert(jobs.job(jobId()).state == IJobRegistry.State.Claimed && jobs.job(jobId()).claimedAt == NOW);
        assert(jobs.tokenGas() >= 200_000 && jobs.tokenGas() <= 2_000_000);
    }

    /// Admin calls by any other account are refused, with any arguments.
    function check_admin_call_on_jobs_of_anybody_else_is_refused() public {
        address sender = address(uint160(svm.createUint(160, "sender")));
        vm.assume(sender != address(this) && sender != address(0));
        bytes memory call = anyCall();
        vm.prank(sender);
        (bool done,) = address(jobs).call(call);
        assert(!done);
    }

    function anyCall() private returns (bytes memory) {
        uint256 what = svm.createUint(8, "what");
        uint256 value = svm.createUint(128, "value");
        bool flag = svm.createBool("flag");
        address account = address(uint160(svm.createUint(160, "account")));
        if (what == 0) return abi.encodeCall(jobs.setFees, (uint16(value), uint128(value)));
        if (what == 1) return abi.encodeCall(jobs.setSla, (uint32(value), flag));
        if (what == 2) return abi.encodeCall(jobs.setTokenGas, (uint32(value)));
        if (what == 3) return abi.encodeCall(jobs.setRelayer, (account, flag));
        if (what == 4) return abi.encodeCall(jobs.pause, ());
        if (what == 5) return abi.encodeCall(jobs.unpause, ());
        if (what == 6) return abi.encodeCall(jobs.setModel, (uint32(value), "model", flag, "", ""));
        if (what == 7) return abi.encodeCall(jobs.setTreasury, (flag ? BYSTANDER : OWNER));
        if (what == 8) return abi.encodeCall(jobs.transferOwnership, (account));
        if (what == 9) return abi.encodeCall(jobs.renounceOwnership, ());
        return abi.encodeCall(jobs.acceptOwnership, ());
    }
}
