// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {MessageHashUtils} from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
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
    bytes32 private constant RECEIVE_TYPEHASH = keccak256(
        "ReceiveWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    );
    uint32 private constant LEAST_TOKEN_GAS = 200_000;
    uint32 private constant MOST_TOKEN_GAS = 2_000_000;
    /// What making a call of the token costs, beside what the call gets and the 1/64 that its caller keeps.
    uint256 private constant CALLING_GAS = 11_800;

    IPaymentToken internal immutable _token;

    uint128 private _escrowed; // payments of claimed jobs
    uint128 private _totalCredits;
    uint256 private transient _separator; // of the token's domain
    mapping(address => uint256) public credit;

    // One slot, together with what Pausable keeps.
    address public treasury;
    /// What one call of the token may use. It is certain to have it, so that a refusal is the token's answer and
    /// never a sender's thrift; and it gets no more, so that a token that burns all gas stops no exit.
    uint32 public tokenGas = LEAST_TOKEN_GAS;

    constructor(address paymentToken) {
        if (paymentToken == address(0)) revert ZeroAddress();
        _token = IPaymentToken(paymentToken);
    }

    /// For a token that an upgrade made dearer. Bounded on both sides: an exit's payouts never get less than they do
    /// in a new registry, and an exit never needs more gas than a block has.
    function setTokenGas(uint32 gasOfOneCall) external onlyOwner {
        if (gasOfOneCall < LEAST_TOKEN_GAS || gasOfOneCall > MOST_TOKEN_GAS) revert InvalidTokenGas();
        tokenGas = gasOfOneCall;
        emit TokenGasSet(gasOfOneCall);
    }

    /// The whole credit, or nothing: a transfer that the token refuses leaves the credit as it was.
    function withdraw(address party) external nonReentrant {
        uint256 amount = credit[party];
        if (amount == 0) revert NothingToWithdraw();
        credit[party] = 0;
        _totalCredits -= uint128(amount); // no credit is above their sum
        emit CreditWithdrawn(party, amount);
        if (!_transfer(party, amount, gasleft())) revert WithdrawalRefused();
    }

    function token() external view returns (address) {
        return address(_token);
    }

    function escrowed() external view returns (uint256) {
        return _escrowed;
    }

    function totalCredits() external view returns (uint256) {
        return _totalCredits;
    }

    /// What `owner` must have signed for `amount` to be collected by the job's id, while the order lasts.
    function _paymentDigest(address owner, uint256 amount, uint64 expiresAt, bytes32 jobId)
        internal
        returns (bytes32)
    {
        bytes32 structHash = keccak256(
            abi.encode(RECEIVE_TYPEHASH, owner, address(this), amount, 0, uint256(expiresAt) + 1, jobId)
        );
        // Read once per transaction: later, a token may be renamed and a chain may fork.
        uint256 separator = _separator;
        if (separator == 0) {
            separator = _read(abi.encodeCall(IPaymentToken.DOMAIN_SEPARATOR, ()));
            _separator = separator;
        }
        return MessageHashUtils.toTypedDataHash(bytes32(separator), structHash);
    }

    function _checkAuthorization(address owner, bytes32 jobId) internal view {
        if (_read(abi.encodeCall(IERC3009.authorizationState, (owner, jobId))) != 0) revert AuthorizationUsed();
    }

    /// Whether the owner could pay now. It may be otherwise when the job is claimed: the claim finds out.
    function _checkBalance(address owner, uint256 amount) internal view {
        if (_balanceOf(owner) < amount) revert InsufficientBalance();
    }

    /// Collect the payment of a job. Afterwards the registry holds at least what it owes, or the whole call reverts.
    function _collect(bytes32 jobId, address owner, uint64 expiresAt, uint256 amount, bytes calldata paySig) internal {
        (uint128 held, uint128 credits) = (_escrowed, _totalCredits);
        if (amount > type(uint128).max - held) revert EscrowFull();
        _escrowed = held + uint128(amount);
        (uint8 v, bytes32 r, bytes32 s) = ECDSA.parseCalldata(paySig);
        (bool done,,) = _callToken(
            abi.encodeCall(
                IERC3009.receiveWithAuthorization,
                (owner, address(this), amount, 0, uint256(expiresAt) + 1, jobId, v, r, s)
            ),
            _grantedGas()
        );
        if (!done) revert PaymentRefused();
        if (_balanceOf(address(this)) < held + amount + credits) revert PaymentShort();
    }

    /// Ends the escrow of `amount`, and credits `share` of it. The rest is paid by `_pay`.
    function _release(uint256 amount, address party, uint256 share) internal {
        // Both are parts of what was collected, so they fit. One after the other, so that it is one write.
        (uint128 left, uint128 credits) = (_escrowed - uint128(amount), _totalCredits + uint128(share));
        _escrowed = left;
        _totalCredits = credits;
        if (share != 0) credit[party] += share;
    }

    /// Pays now, or credits what the token refuses to transfer: one refused party holds up nobody else.
    function _pay(bytes32 jobId, address party, uint256 amount) internal {
        if (amount == 0) return;
        if (_transfer(party, amount, _grantedGas())) return;
        credit[party] += amount;
        _totalCredits += uint128(amount); // it was escrowed, so it fits
        emit PayoutCredited(jobId, party, amount);
    }

    function _transfer(address party, uint256 amount, uint256 gasOfCall) private returns (bool) {
        (bool done, uint256 size, uint256 answer) =
            _callToken(abi.encodeCall(IERC20.transfer, (party, amount)), gasOfCall);
        // Some tokens answer nothing when they succeed. No answer at all from an address without code cannot
        // happen here: nothing could have been collected from it.
        return done && (size == 0 || (size >= 32 && answer == 1));
    }

    function _grantedGas() private view returns (uint256 granted) {
        granted = tokenGas;
        if (gasleft() < granted + granted / 63 + CALLING_GAS) revert CallStarved();
    }

    /// No more of an answer is read than its first word, however long it is.
    function _callToken(bytes memory data, uint256 gasOfCall)
        private
        returns (bool done, uint256 size, uint256 answer)
    {
        address target = address(_token);
        assembly ("memory-safe") {
            mstore(0, 0)
            done := call(gasOfCall, target, 0, add(data, 32), mload(data), 0, 32)
            size := returndatasize()
            answer := mload(0)
        }
    }

    /// As `_read`, with the call in scratch space: it is read twice a job.
    function _balanceOf(address account) private view returns (uint256 answer) {
        address target = address(_token);
        bytes4 selector = IERC20.balanceOf.selector;
        bool done;
        assembly ("memory-safe") {
            mstore(0, selector)
            mstore(4, account)
            done := staticcall(gas(), target, 0, 36, 0, 32)
            done := and(done, gt(returndatasize(), 31))
            answer := mload(0)
        }
        if (!done) revert TokenUnreadable();
    }

    /// A word that the token tells of itself; a token that does not answer takes no payments either.
    function _read(bytes memory data) private view returns (uint256 answer) {
        address target = address(_token);
        bool done;
        assembly ("memory-safe") {
            done := staticcall(gas(), target, add(data, 32), mload(data), 0, 32)
            done := and(done, gt(returndatasize(), 31))
            answer := mload(0)
        }
        if (!done) revert TokenUnreadable();
    }
}
