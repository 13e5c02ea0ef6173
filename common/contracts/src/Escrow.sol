// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {MessageHashUtils} from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IERC3009} from "@openzeppelin/contracts/interfaces/draft-IERC3009.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {IJobRegistry} from "./interfaces/IJobRegistry.sol";
import {Relayed} from "./Relayed.sol";

/// A payment token with EIP-3009 and a domain separator of its own.
interface IPaymentToken is IERC20, IERC3009 {
    function DOMAIN_SEPARATOR() external view returns (bytes32);
}

/// The money: collects a payment by its owner's signature, pays it out, keeps what the token refuses to pay.
/// Nobody can move escrowed funds in another way; tokens sent here by mistake stay.
abstract contract Escrow is IJobRegistry, Relayed, ReentrancyGuardTransient {
    using SafeERC20 for IERC20;

    bytes32 private constant RECEIVE_TYPEHASH = keccak256(
        "ReceiveWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    );
    /// What one call of the token may use. It is certain to have it, so that a refusal is the token's answer and
    /// never a sender's thrift; and it gets no more, so that a token that burns all gas stops no exit.
    uint256 private constant TOKEN_GAS = 200_000;
    /// TOKEN_GAS plus the 1/64 that a caller keeps, plus what making the call costs.
    uint256 private constant GAS_BEFORE_TOKEN = 215_000;

    IPaymentToken internal immutable _token;

    uint256 public escrowed; // payments of claimed jobs
    uint256 public totalCredits;
    mapping(address => uint256) public credit;

    constructor(address paymentToken) {
        if (paymentToken == address(0)) revert ZeroAddress();
        _token = IPaymentToken(paymentToken);
    }

    /// The whole credit, or nothing: a transfer that the token refuses leaves the credit as it was.
    function withdraw(address to) external nonReentrant {
        if (to == address(0)) revert ZeroAddress();
        uint256 amount = credit[msg.sender];
        if (amount == 0) revert NothingToWithdraw();
        credit[msg.sender] = 0;
        totalCredits -= amount;
        emit CreditWithdrawn(msg.sender, to, amount);
        if (!IERC20(_token).trySafeTransfer(to, amount)) revert PaymentRefused();
    }

    function token() external view returns (address) {
        return address(_token);
    }

    /// What `owner` must have signed for `amount` to be collected by the job's id, while the order lasts.
    function _paymentDigest(address owner, uint256 amount, uint64 expiresAt, bytes32 jobId)
        internal
        view
        returns (bytes32)
    {
        bytes32 structHash = keccak256(
            abi.encode(RECEIVE_TYPEHASH, owner, address(this), amount, 0, uint256(expiresAt) + 1, jobId)
        );
        // Asked each time, because a token may be renamed and a chain may fork.
        return MessageHashUtils.toTypedDataHash(_token.DOMAIN_SEPARATOR(), structHash);
    }

    /// Exactly `amount` arrives, or the whole call reverts with PaymentRefused.
    function _collect(address owner, uint256 amount, uint64 expiresAt, bytes32 jobId, bytes calldata paySig) internal {
        if (paySig.length != 65) revert PaymentRefused();
        escrowed += amount;
        (uint8 v, bytes32 r, bytes32 s) = ECDSA.parseCalldata(paySig);
        uint256 before = _ownBalance();
        (bool done,) = _callToken(
            abi.encodeCall(
                IERC3009.receiveWithAuthorization,
                (owner, address(this), amount, 0, uint256(expiresAt) + 1, jobId, v, r, s)
            )
        );
        if (!done || _ownBalance() != before + amount) revert PaymentRefused();
    }

    /// Ends the escrow of `amount`. What it is split into is paid by `_pay`.
    function _release(uint256 amount) internal {
        escrowed -= amount;
    }

    /// Pays now, or credits what the token refuses to transfer: one refused party holds up nobody else.
    function _pay(address party, uint256 amount) internal {
        if (amount == 0) return;
        (bool done, bytes memory answer) = _callToken(abi.encodeCall(IERC20.transfer, (party, amount)));
        // Some tokens answer nothing when they succeed. No answer at all from an address without code cannot
        // happen here: nothing could have been collected from it.
        if (done && (answer.length == 0 || (answer.length >= 32 && abi.decode(answer, (uint256)) == 1))) return;
        credit[party] += amount;
        totalCredits += amount;
        emit PayoutCredited(party, amount);
    }

    function _callToken(bytes memory data) private returns (bool done, bytes memory answer) {
        if (gasleft() < GAS_BEFORE_TOKEN) revert CallStarved();
        return address(_token).call{gas: TOKEN_GAS}(data);
    }

    function _ownBalance() private view returns (uint256) {
        try _token.balanceOf(address(this)) returns (uint256 balance) {
            return balance;
        } catch {
            revert PaymentRefused();
        }
    }
}
