// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ProviderRegistry} from "../src/ProviderRegistry.sol";
import {Proof} from "./Proof.sol";

/// Proofs that the provider registry stops no exit: it ends every claimed job for its claimer, with any provider
/// record.
contract ProviderProofs is Proof {
    uint256 private constant REGISTRY = 5;
    uint256 private constant IDS = 7;
    uint256 private constant RECORDS = 8;
    uint32 private constant ID = 3;
    uint256 private constant POINT = 1 << 16;

    ProviderRegistry internal providers;
    /// Calls of the job registry, whose role this contract plays.
    uint256 public escrowed;

    function setUp() public {
        vm.warp(NOW);
        providers = new ProviderRegistry(address(this), 0);
    }

    function record(uint256 offset) private pure returns (bytes32) {
        return bytes32(uint256(keccak256(abi.encode(ID, RECORDS))) + offset);
    }

    /// Any provider record with a claimed job, and any price of a reputation point.
    function anyRecord() private returns (uint256 reputation, uint256 grace, uint256 active) {
        uint256 price = svm.createUint(96, "pointPrice");
        vm.store(address(providers), bytes32(REGISTRY), bytes32(uint160(address(this)) | price << 160));
        reputation = svm.createUint(32, "reputation");
        grace = svm.createUint(32, "grace");
        active = svm.createUint(32, "activeJobs");
        vm.assume(reputation >= 100 * POINT && reputation <= 1000 * POINT && grace <= 320 * POINT && active != 0);
        uint256 requested = svm.createUint(32, "requested");
        uint256 ceiling = svm.createUint(32, "ceiling");
        uint256 dates = svm.createUint(80, "dates");
        uint256 flags = svm.createUint(1, "listed") | svm.createUint(1, "all models") << 8;
        vm.store(address(providers), record(0), bytes32(uint256(uint160(OPERATOR))));
        vm.store(
            address(providers),
            record(2),
            bytes32(
                reputation | grace << 32 | requested << 64 | ceiling << 96 | active << 128 | dates << 160 | flags << 240
            )
        );
        assert(providers.provider(ID).operator == OPERATOR && providers.provider(ID).activeJobs == active);
        assert(providers.jobRegistry() == address(this) && providers.pointPrice() == price);
    }

    function assertEnded(uint256 active) private view {
        assert(providers.provider(ID).activeJobs == active - 1 && providers.provider(ID).operator == OPERATOR);
        assert(providers.provider(ID).reputation >= 100 && providers.provider(ID).reputation <= 1000);
        assert(providers.provider(ID).grace <= 320);
    }

    /// Quotients of unknowns are replaced by any number. tests/contracts/prices.py proves that a partial gain is below
    /// the full gain.
    function check_a_settle_is_taken_whatever_the_record() public {
        (uint256 reputation,, uint256 active) = anyRecord();
        address owner = svm.createBool("an order to itself") ? OPERATOR : OWNER;
        uint256 share = svm.createUint(128, "share");
        uint256 price = providers.pointPrice();
        unchecked {
            if (share < price * 5) vm.assume(share * POINT / price <= 5 * POINT);
        }
        try providers.jobSettled(ID, OPERATOR, owner, share) {
            assertEnded(active);
            assert(providers.provider(ID).reputation >= reputation / POINT);
            if (owner == OPERATOR) assert(providers.provider(ID).reputation == reputation / POINT);
        } catch {
            assert(false);
        }
    }

    function check_a_fail_is_taken_whatever_the_record() public {
        (uint256 reputation, uint256 grace, uint256 active) = anyRecord();
        bool prompt = svm.createBool("prompt");
        bool late = svm.createBool("late");
        try providers.jobFailed(ID, OPERATOR, prompt, late) {
            assertEnded(active);
            bool excused = prompt && !late && grace >= 20 * POINT;
            if (excused) assert(providers.provider(ID).reputation == reputation / POINT);
            if (!excused && reputation == 100 * POINT) assert(!providers.provider(ID).listed);
        } catch {
            assert(false);
        }
    }

    function check_a_reclaim_is_taken_whatever_the_record() public {
        (,, uint256 active) = anyRecord();
        try providers.jobReclaimed(ID) {
            assertEnded(active);
        } catch {
            assert(false);
        }
    }

    /// Only the job registry moves reputation, grace and the count of claimed jobs.
    function check_hooks_are_for_the_job_registry_alone() public {
        (uint256 reputation, uint256 grace, uint256 active) = anyRecord();
        vm.store(address(providers), keccak256(abi.encode(OPERATOR, IDS)), bytes32(uint256(ID)));
        address sender = address(uint160(svm.createUint(160, "sender")));
        vm.assume(sender != address(this));
        uint256 what = svm.createUint(8, "what");
        vm.prank(sender);
        if (what == 0) try providers.jobClaimed(OPERATOR, 1, true, 0) { assert(false); } catch {}
        else if (what == 1) try providers.jobSettled(ID, OPERATOR, OWNER, 1) { assert(false); } catch {}
        else if (what == 2) try providers.jobFailed(ID, OPERATOR, true, false) { assert(false); } catch {}
        else try providers.jobReclaimed(ID) { assert(false); } catch {}
        assert(providers.provider(ID).activeJobs == active);
        assert(providers.provider(ID).reputation == reputation / POINT && providers.provider(ID).grace == grace / POINT);
    }

    /// Only the operator can request capacity, by a call or a signature, with a newer time at most an hour ahead.
    function check_capacity_is_requested_by_the_operator_at_newer_times() public {
        anyRecord();
        vm.store(address(providers), keccak256(abi.encode(OPERATOR, IDS)), bytes32(uint256(ID)));
        uint256 last = providers.lastCapacityAt(ID);
        address sender = address(uint160(svm.createUint(160, "sender")));
        uint64 issuedAt = uint64(svm.createUint(64, "issuedAt"));
        uint256 time = svm.createUint(40, "time");
        vm.assume(time < (1 << 40) - 3600); // times are kept in 40 bits
        bool signed = svm.createBool("signed");
        bytes memory sig = signed ? svm.createBytes(65, "sig") : new bytes(0);
        vm.warp(time);
        vm.prank(sender);
        try providers.requestCapacity(9, issuedAt, sig) {
            assert(issuedAt > last && issuedAt <= time + 3600);
            assert(providers.lastCapacityAt(ID) == issuedAt && providers.provider(ID).requested == 9);
            if (!signed) {
                assert(sender == OPERATOR);
                return;
            }
            bytes32 structHash =
                keccak256(abi.encode(keccak256("RequestCapacity(uint32 n,uint64 issuedAt)"), uint32(9), issuedAt));
            bytes32 digest = keccak256(abi.encodePacked(hex"1901", providers.DOMAIN_SEPARATOR(), structHash));
            (bytes32 r, bytes32 s) = abi.decode(sig, (bytes32, bytes32));
            assert(ecrecover(digest, uint8(sig[64]), r, s) == OPERATOR);
        } catch {
            assert(providers.lastCapacityAt(ID) == last);
        }
    }

    /// Admin calls by any other account are refused, with any arguments.
    function check_admin_call_of_anybody_else_is_refused() public {
        anyRecord();
        address sender = address(uint160(svm.createUint(160, "sender")));
        vm.assume(sender != address(this));
        bytes memory call = anyCall();
        vm.prank(sender);
        (bool done,) = address(providers).call(call);
        assert(!done);
    }

    /// After any admin call, a claimed job can still be ended by its claimer and the registry that holds its payment.
    function check_admin_call_touches_no_claimed_job() public {
        (uint256 reputation, uint256 grace, uint256 active) = anyRecord();
        escrowed = svm.createUint(128, "escrowed");
        vm.assume(escrowed != 0);
        (bool done,) = address(providers).call(anyCall());
        done;
        assert(providers.provider(ID).activeJobs == active && providers.provider(ID).operator == OPERATOR);
        assert(providers.provider(ID).reputation == reputation / POINT && providers.provider(ID).grace == grace / POINT);
        assert(providers.jobRegistry() == address(this));
    }

    function anyCall() private returns (bytes memory) {
        uint256 what = svm.createUint(8, "what");
        uint256 value = svm.createUint(128, "value");
        bool flag = svm.createBool("flag");
        address account = address(uint160(svm.createUint(160, "account")));
        if (what == 0) return abi.encodeCall(providers.setListed, (ID, flag));
        if (what == 1) return abi.encodeCall(providers.setCeiling, (ID, uint32(value)));
        if (what == 2) return abi.encodeCall(providers.setAllowAllModels, (ID, flag));
        if (what == 3) return abi.encodeCall(providers.setModelAllowed, (ID, uint32(value), flag));
        if (what == 4) return abi.encodeCall(providers.setAllowlist, (bytes32(value), uint8(value), "entry"));
        if (what == 5) return abi.encodeCall(providers.setJobRegistry, (flag ? BYSTANDER : address(this)));
        if (what == 6) return abi.encodeCall(providers.setPointPrice, (uint96(value)));
        if (what == 7) return abi.encodeCall(providers.setRelayer, (account, flag));
        if (what == 8) return abi.encodeCall(providers.transferOwnership, (account));
        return abi.encodeCall(providers.renounceOwnership, ());
    }
}
