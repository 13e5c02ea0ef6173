// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ERC3009} from "@openzeppelin/contracts/token/ERC20/extensions/draft-ERC3009.sol";
import {IERC20Errors} from "@openzeppelin/contracts/interfaces/draft-IERC6093.sol";
import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {DevToken} from "../src/DevToken.sol";
import {World} from "./World.sol";

contract DevTokenTest is World {
    bytes32 private constant NONCE = "nonce";

    function test_token_has_six_decimals_and_its_names() public view {
        vm.assertEq(token.decimals(), 6);
        vm.assertEq(bytes(token.name()), "Dev Dollar");
        vm.assertEq(bytes(token.symbol()), "DEVUSD");
    }

    function test_transfer_with_authorization_is_sent_by_anyone_and_once() public {
        (uint8 v, bytes32 r, bytes32 s) = authorize("Transfer", stranger, START - 1, START + 1);
        vm.assertEq(token.authorizationState(client, NONCE), false);
        vm.prank(relayer);
        token.transferWithAuthorization(client, stranger, 5, START - 1, START + 1, NONCE, v, r, s);
        vm.assertEq(token.balanceOf(stranger), 5);
        vm.assertEq(token.authorizationState(client, NONCE), true);
        vm.expectRevert(abi.encodeWithSelector(ERC3009.ERC3009UsedAuthorization.selector, client, NONCE));
        token.transferWithAuthorization(client, stranger, 5, START - 1, START + 1, NONCE, v, r, s);
    }

    function test_receive_with_authorization_is_sent_by_the_payee_alone() public {
        (uint8 v, bytes32 r, bytes32 s) = authorize("Receive", stranger, 0, START + 1);
        vm.prank(relayer);
        vm.expectRevert(abi.encodeWithSelector(IERC20Errors.ERC20InvalidReceiver.selector, stranger));
        token.receiveWithAuthorization(client, stranger, 5, 0, START + 1, NONCE, v, r, s);
        vm.prank(stranger);
        token.receiveWithAuthorization(client, stranger, 5, 0, START + 1, NONCE, v, r, s);
        vm.assertEq(token.balanceOf(stranger), 5);
    }

    function test_authorization_holds_strictly_between_its_times() public {
        (uint8 v, bytes32 r, bytes32 s) = authorize("Transfer", stranger, START, START + 2);
        bytes memory refusal =
            abi.encodeWithSelector(ERC3009.ERC3009InvalidAuthorizationTime.selector, START, START + 2);
        vm.expectRevert(refusal);
        token.transferWithAuthorization(client, stranger, 5, START, START + 2, NONCE, v, r, s);
        vm.warp(START + 2);
        vm.expectRevert(refusal);
        token.transferWithAuthorization(client, stranger, 5, START, START + 2, NONCE, v, r, s);
        vm.warp(START + 1);
        token.transferWithAuthorization(client, stranger, 5, START, START + 2, NONCE, v, r, s);
    }

    function test_authorization_for_anything_else_is_no_signature() public {
        (uint8 v, bytes32 r, bytes32 s) = authorize("Transfer", stranger, 0, START + 1);
        vm.expectRevert(ERC3009.ERC3009InvalidSignature.selector);
        token.transferWithAuthorization(client, stranger, 6, 0, START + 1, NONCE, v, r, s);
        vm.prank(stranger);
        vm.expectRevert(ERC3009.ERC3009InvalidSignature.selector);
        token.receiveWithAuthorization(client, stranger, 5, 0, START + 1, NONCE, v, r, s);
    }

    function test_cancelled_authorization_is_used_up() public {
        (uint8 v, bytes32 r, bytes32 s) = authorize("Transfer", stranger, 0, START + 1);
        cancelAuthorization(CLIENT_KEY, NONCE);
        vm.assertEq(token.authorizationState(client, NONCE), true);
        vm.expectRevert(abi.encodeWithSelector(ERC3009.ERC3009UsedAuthorization.selector, client, NONCE));
        token.transferWithAuthorization(client, stranger, 5, 0, START + 1, NONCE, v, r, s);
    }

    function test_shut_out_account_neither_sends_nor_receives() public {
        vm.expectEmit(address(token));
        emit DevToken.Blacklisted(client, true);
        token.setBlacklisted(client, true);
        vm.prank(client);
        vm.expectRevert(abi.encodeWithSelector(DevToken.AccountBlacklisted.selector, client));
        token.transfer(stranger, 1);
        vm.expectRevert(abi.encodeWithSelector(DevToken.AccountBlacklisted.selector, client));
        token.mint(client, 1);
        token.setBlacklisted(client, false);
        vm.prank(client);
        token.transfer(stranger, 1);
    }

    function test_paused_token_moves_nothing() public {
        token.pause();
        vm.prank(client);
        vm.expectRevert(Pausable.EnforcedPause.selector);
        token.transfer(stranger, 1);
        token.unpause();
        vm.prank(client);
        token.transfer(stranger, 1);
    }

    function authorize(string memory verb, address to, uint256 after_, uint256 before)
        private
        view
        returns (uint8 v, bytes32 r, bytes32 s)
    {
        bytes32 typeHash = keccak256(
            bytes(
                string.concat(
                    verb,
                    "WithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
                )
            )
        );
        bytes32 structHash = keccak256(abi.encode(typeHash, client, to, 5, after_, before, NONCE));
        return vm.sign(CLIENT_KEY, digestOf(domain("Dev Dollar", "1", address(token)), structHash));
    }
}
