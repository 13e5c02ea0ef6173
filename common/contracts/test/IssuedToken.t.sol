// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IssuedToken} from "../src/IssuedToken.sol";
import {IssuedTokenProxy} from "../src/IssuedTokenProxy.sol";
import {IJobRegistry} from "../src/interfaces/IJobRegistry.sol";
import {World} from "./World.sol";

/// A contract account that accepts one signature as its own (EIP-1271).
contract SmartAccount {
    bytes32 private immutable _accepted;

    constructor(bytes memory signature) {
        _accepted = keccak256(signature);
    }

    function isValidSignature(bytes32, bytes calldata signature) external view returns (bytes4) {
        return keccak256(signature) == _accepted ? bytes4(0x1626ba7e) : bytes4(0xffffffff);
    }
}

/// Tests of the registry with a realistic token: proxy, blacklist, pause, both forms of signatures.
contract IssuedTokenTest is World {
    address private constant PROXY_ADMIN = address(0xAD);
    IssuedToken private issued;

    function makeToken() internal override returns (address) {
        address proxy = address(new IssuedTokenProxy(address(new IssuedToken()), PROXY_ADMIN));
        issued = IssuedToken(proxy);
        issued.initialize(address(this), "Issued Dollar", "IUSD");
        return proxy;
    }

    // --- the registry with this token ---

    function test_whole_life_is_exact_to_the_unit() public {
        (bytes32 jobId, Draft memory d) = claimed();
        settle(jobId, 100);
        uint256 share = 2600 * uint256(FEE_BPS) / 10_000 + GAS_FEE;
        vm.assertEq(issued.balanceOf(operator), 2600);
        vm.assertEq(issued.balanceOf(client), 1e18 - 2600 - share);
        jobs.withdraw(treasury);
        vm.assertEq(issued.balanceOf(treasury), share);
        vm.assertEq(issued.balanceOf(address(jobs)), 0);
        vm.assertGe(d.amount, 2600 + share);
    }

    function test_each_party_that_is_shut_out_is_credited_and_holds_up_nobody() public {
        address[2] memory parties = [client, operator];
        for (uint256 i = 0; i < 2; ++i) {
            (bytes32 jobId, Draft memory d) = (post(draftOf(bytes32(i))), draftOf(bytes32(i)));
            claim(jobId, d.paySig);
            issued.blacklist(parties[i]);
            settle(jobId, 1);
            uint256 owed = jobs.credit(parties[i]);
            vm.assertTrue(owed > 0);
            vm.expectRevert(IJobRegistry.WithdrawalRefused.selector);
            jobs.withdraw(parties[i]);
            issued.unBlacklist(parties[i]);
            uint256 before = issued.balanceOf(parties[i]);
            jobs.withdraw(parties[i]);
            vm.assertEq(issued.balanceOf(parties[i]) - before, owed);
        }
    }

    function test_registry_that_is_shut_out_ends_its_jobs_and_pays_when_it_is_let_in_again() public {
        (bytes32 jobId, Draft memory d) = claimed();
        Draft memory other = draftOf("other");
        post(other);
        issued.blacklist(address(jobs));
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.PaymentRefused.selector);
        jobs.claim(terms(idOf(client, "other")), 0, "", other.paySig);
        fail(jobId);
        vm.assertEq(jobs.credit(client), d.amount);
        issued.unBlacklist(address(jobs));
        jobs.withdraw(client);
        vm.assertEq(issued.balanceOf(client), 1e18);
    }

    function test_claim_of_an_owner_that_was_shut_out_is_refused_and_its_post_is_not() public {
        issued.blacklist(client);
        (bytes32 jobId, Draft memory d) = posted(); // the registry cannot query the blacklist of every token
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.PaymentRefused.selector);
        jobs.claim(terms(jobId), 0, "", d.paySig);
    }

    function test_paused_token_stops_claims_and_no_exit() public {
        (bytes32 jobId, Draft memory d) = claimed();
        issued.pause();
        settle(jobId, 1);
        vm.assertEq(jobs.totalCredits(), d.amount);
        issued.unpause();
        jobs.withdraw(client);
        jobs.withdraw(operator);
        jobs.withdraw(treasury);
        vm.assertEq(issued.balanceOf(address(jobs)), 0);
    }

    function test_upgrade_between_post_and_settle_changes_nothing() public {
        (bytes32 jobId, Draft memory d) = posted();
        address second = address(new IssuedToken());
        vm.prank(PROXY_ADMIN);
        IssuedTokenProxy(address(issued)).upgradeTo(second);
        claim(jobId, d.paySig);
        settle(jobId, 1);
        vm.assertEq(issued.balanceOf(operator), 2006);
        vm.prank(PROXY_ADMIN);
        vm.expectRevert("the admin cannot use the token");
        issued.balanceOf(client);
        vm.expectRevert("only the admin upgrades");
        IssuedTokenProxy(address(issued)).upgradeTo(second);
    }

    /// The token would call the contract account, whose answer may change, so the registry rejects such a payer.
    function test_payer_whose_code_accepts_the_signature_is_refused_at_post_and_claim() public {
        Draft memory d = draft();
        bytes memory code = address(new SmartAccount(d.paySig)).code;
        vm.etch(client, code);
        vm.prank(relayer);
        vm.expectRevert(IJobRegistry.PayerHasCode.selector);
        jobs.post(d.order, d.owner, d.amount, d.taskCid, d.orderSig, d.paySig);
        vm.etch(client, "");
        bytes32 jobId = post(d);
        vm.etch(client, code);
        vm.prank(operator);
        vm.expectRevert(IJobRegistry.PayerHasCode.selector);
        jobs.claim(terms(jobId), 0, "", d.paySig);
    }

    // --- the token itself ---

    function test_three_authorisations_take_both_forms_of_signature_once() public {
        bytes32 transfer = keccak256(
            "TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
        );
        for (uint256 form = 0; form < 2; ++form) {
            bytes32 nonce = bytes32(form);
            bytes32 digest = digestOf(
                issued.DOMAIN_SEPARATOR(),
                keccak256(abi.encode(transfer, client, stranger, 5, 0, START + 1, nonce))
            );
            (uint8 v, bytes32 r, bytes32 s) = vm.sign(CLIENT_KEY, digest);
            bytes memory sig = abi.encodePacked(r, s, v);
            if (form == 0) issued.transferWithAuthorization(client, stranger, 5, 0, START + 1, nonce, v, r, s);
            else issued.transferWithAuthorization(client, stranger, 5, 0, START + 1, nonce, sig);
            vm.assertEq(issued.balanceOf(stranger), 5 * (form + 1));
            vm.expectRevert("authorization is used or canceled");
            issued.transferWithAuthorization(client, stranger, 5, 0, START + 1, nonce, sig);

            nonce = bytes32(form + 10);
            digest = digestOf(issued.DOMAIN_SEPARATOR(), paymentHash(client, rival, 7, 0, START + 1, nonce));
            (v, r, s) = vm.sign(CLIENT_KEY, digest);
            vm.expectRevert("caller must be the payee");
            issued.receiveWithAuthorization(client, rival, 7, 0, START + 1, nonce, v, r, s);
            vm.prank(rival);
            if (form == 0) issued.receiveWithAuthorization(client, rival, 7, 0, START + 1, nonce, v, r, s);
            else issued.receiveWithAuthorization(client, rival, 7, 0, START + 1, nonce, abi.encodePacked(r, s, v));
            vm.assertEq(issued.balanceOf(rival), 7 * (form + 1));

            nonce = bytes32(form + 20);
            bytes32 cancel = keccak256("CancelAuthorization(address authorizer,bytes32 nonce)");
            digest = digestOf(issued.DOMAIN_SEPARATOR(), keccak256(abi.encode(cancel, client, nonce)));
            (v, r, s) = vm.sign(CLIENT_KEY, digest);
            if (form == 0) issued.cancelAuthorization(client, nonce, v, r, s);
            else issued.cancelAuthorization(client, nonce, abi.encodePacked(r, s, v));
            vm.assertEq(issued.authorizationState(client, nonce), true);
        }
    }

    function test_account_with_code_is_asked_itself_and_one_without_is_not() public {
        bytes memory taken = "any signature at all";
        address account = address(new SmartAccount(taken));
        issued.mint(account, 100);
        vm.prank(rival);
        issued.receiveWithAuthorization(account, rival, 7, 0, START + 1, "n", taken);
        vm.assertEq(issued.balanceOf(rival), 7);
        vm.prank(rival);
        vm.expectRevert("invalid signature");
        issued.receiveWithAuthorization(account, rival, 7, 0, START + 1, "m", "another");
        vm.prank(rival);
        vm.expectRevert("invalid signature");
        issued.receiveWithAuthorization(client, rival, 7, 0, START + 1, "m", taken);
    }

    function test_authorisation_counts_only_within_its_time() public {
        bytes memory sig =
            sign(CLIENT_KEY, digestOf(issued.DOMAIN_SEPARATOR(), paymentHash(client, rival, 7, START, START + 2, "n")));
        vm.startPrank(rival);
        vm.expectRevert("authorization is not yet valid");
        issued.receiveWithAuthorization(client, rival, 7, START, START + 2, "n", sig);
        vm.warp(START + 2);
        vm.expectRevert("authorization is expired");
        issued.receiveWithAuthorization(client, rival, 7, START, START + 2, "n", sig);
        vm.warp(START + 1);
        issued.receiveWithAuthorization(client, rival, 7, START, START + 2, "n", sig);
    }

    function test_transfers_by_allowance_and_refusals_by_text() public {
        vm.prank(client);
        issued.approve(stranger, 10);
        vm.startPrank(stranger);
        issued.transferFrom(client, rival, 4);
        vm.assertEq(issued.allowance(client, stranger), 6);
        vm.expectRevert("amount exceeds allowance");
        issued.transferFrom(client, rival, 7);
        vm.expectRevert("amount exceeds balance");
        issued.transfer(rival, 1);
        vm.expectRevert("caller is not the issuer");
        issued.mint(stranger, 1);
        vm.stopPrank();
        issued.pause();
        vm.prank(client);
        vm.expectRevert("token is paused");
        issued.transfer(rival, 1);
        vm.assertEq(issued.totalSupply(), 1e18);
        vm.expectRevert("already initialised");
        issued.initialize(stranger, "", "");
    }
}
