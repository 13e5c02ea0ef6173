// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";

/// A payment token for tests that behaves as the largest dollar token does, where a registry can tell: it stands behind
/// an upgradable proxy, its issuer can stop it and shut accounts out, a balance shares its slot with the shut-out mark,
/// an account with code is asked itself whether a signature is its own (EIP-1271), authorisations come in two forms
/// of signature, and refusals are texts.
contract IssuedToken {
    uint256 private constant SHUT_OUT = 1 << 255;
    bytes4 private constant ACCEPTED = 0x1626ba7e; // of EIP-1271
    bytes32 private constant DOMAIN_TYPEHASH =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 private constant TRANSFER_TYPEHASH = keccak256(
        "TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    );
    bytes32 private constant RECEIVE_TYPEHASH = keccak256(
        "ReceiveWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    );
    bytes32 private constant CANCEL_TYPEHASH = keccak256("CancelAuthorization(address authorizer,bytes32 nonce)");
    string public constant version = "2";
    uint8 public constant decimals = 6;

    address public issuer;
    bool public paused;
    string public name;
    string public symbol;
    uint256 public totalSupply;
    mapping(address => uint256) private _balanceAndMark;
    mapping(address => mapping(address => uint256)) public allowance;
    mapping(address => mapping(bytes32 => bool)) public authorizationState;

    event Transfer(address indexed from, address indexed to, uint256 value);
    event Approval(address indexed owner, address indexed spender, uint256 value);
    event AuthorizationUsed(address indexed authorizer, bytes32 indexed nonce);
    event AuthorizationCanceled(address indexed authorizer, bytes32 indexed nonce);
    event Blacklisted(address indexed account);
    event UnBlacklisted(address indexed account);
    event Pause();
    event Unpause();

    modifier onlyIssuer() {
        require(msg.sender == issuer, "caller is not the issuer");
        _;
    }

    modifier running() {
        require(!paused, "token is paused");
        _;
    }

    modifier welcome(address account) {
        require(!isBlacklisted(account), "account is blacklisted");
        _;
    }

    function initialize(address firstIssuer, string calldata tokenName, string calldata tokenSymbol) external {
        require(issuer == address(0), "already initialised");
        require(firstIssuer != address(0), "issuer is the zero address");
        (issuer, name, symbol) = (firstIssuer, tokenName, tokenSymbol);
    }

    // --- the issuer ---

    function mint(address to, uint256 amount) external onlyIssuer running welcome(to) {
        totalSupply += amount;
        _setBalance(to, balanceOf(to) + amount);
        emit Transfer(address(0), to, amount);
    }

    function blacklist(address account) external onlyIssuer {
        _balanceAndMark[account] |= SHUT_OUT;
        emit Blacklisted(account);
    }

    function unBlacklist(address account) external onlyIssuer {
        _balanceAndMark[account] &= ~SHUT_OUT;
        emit UnBlacklisted(account);
    }

    function pause() external onlyIssuer {
        paused = true;
        emit Pause();
    }

    function unpause() external onlyIssuer {
        paused = false;
        emit Unpause();
    }

    // --- ERC-20 ---

    function transfer(address to, uint256 value) external running welcome(msg.sender) welcome(to) returns (bool) {
        _move(msg.sender, to, value);
        return true;
    }

    function approve(address spender, uint256 value)
        external
        running
        welcome(msg.sender)
        welcome(spender)
        returns (bool)
    {
        allowance[msg.sender][spender] = value;
        emit Approval(msg.sender, spender, value);
        return true;
    }

    function transferFrom(address from, address to, uint256 value)
        external
        running
        welcome(msg.sender)
        welcome(from)
        welcome(to)
        returns (bool)
    {
        require(value <= allowance[from][msg.sender], "amount exceeds allowance");
        allowance[from][msg.sender] -= value;
        _move(from, to, value);
        return true;
    }

    function balanceOf(address account) public view returns (uint256) {
        return _balanceAndMark[account] & ~SHUT_OUT;
    }

    function isBlacklisted(address account) public view returns (bool) {
        return _balanceAndMark[account] & SHUT_OUT != 0;
    }

    // --- EIP-3009, each with both forms of signature ---

    function transferWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        uint8 v,
        bytes32 r,
        bytes32 s
    ) external {
        transferWithAuthorization(from, to, value, validAfter, validBefore, nonce, abi.encodePacked(r, s, v));
    }

    function transferWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        bytes memory signature
    ) public running welcome(from) welcome(to) {
        bytes32 message =
            keccak256(abi.encode(TRANSFER_TYPEHASH, from, to, value, validAfter, validBefore, nonce));
        _use(from, validAfter, validBefore, nonce, message, signature);
        _move(from, to, value);
    }

    function receiveWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        uint8 v,
        bytes32 r,
        bytes32 s
    ) external {
        receiveWithAuthorization(from, to, value, validAfter, validBefore, nonce, abi.encodePacked(r, s, v));
    }

    function receiveWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        bytes memory signature
    ) public running welcome(from) welcome(to) {
        require(to == msg.sender, "caller must be the payee");
        bytes32 message =
            keccak256(abi.encode(RECEIVE_TYPEHASH, from, to, value, validAfter, validBefore, nonce));
        _use(from, validAfter, validBefore, nonce, message, signature);
        _move(from, to, value);
    }

    function cancelAuthorization(address authorizer, bytes32 nonce, uint8 v, bytes32 r, bytes32 s) external {
        cancelAuthorization(authorizer, nonce, abi.encodePacked(r, s, v));
    }

    function cancelAuthorization(address authorizer, bytes32 nonce, bytes memory signature) public running {
        require(!authorizationState[authorizer][nonce], "authorization is used or canceled");
        _requireSigned(authorizer, keccak256(abi.encode(CANCEL_TYPEHASH, authorizer, nonce)), signature);
        authorizationState[authorizer][nonce] = true;
        emit AuthorizationCanceled(authorizer, nonce);
    }

    /// Computed each time, as the token may be renamed by an upgrade and the chain may fork.
    function DOMAIN_SEPARATOR() public view returns (bytes32) {
        return keccak256(
            abi.encode(
                DOMAIN_TYPEHASH, keccak256(bytes(name)), keccak256(bytes(version)), block.chainid, address(this)
            )
        );
    }

    // --- inside ---

    function _use(
        address from,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        bytes32 message,
        bytes memory signature
    ) private {
        require(block.timestamp > validAfter, "authorization is not yet valid");
        require(block.timestamp < validBefore, "authorization is expired");
        require(!authorizationState[from][nonce], "authorization is used or canceled");
        _requireSigned(from, message, signature);
        authorizationState[from][nonce] = true;
        emit AuthorizationUsed(from, nonce);
    }

    function _requireSigned(address account, bytes32 message, bytes memory signature) private view {
        bytes32 digest = keccak256(abi.encodePacked(hex"1901", DOMAIN_SEPARATOR(), message));
        bool good;
        if (account.code.length == 0) {
            // Why a signature is bad changes nothing here.
            // slither-disable-next-line unused-return
            (address signer,,) = ECDSA.tryRecover(digest, signature);
            good = signer == account && signer != address(0);
        } else {
            (bool done, bytes memory answer) =
                account.staticcall(abi.encodeWithSelector(ACCEPTED, digest, signature));
            good = done && answer.length >= 32 && abi.decode(answer, (bytes32)) == bytes32(ACCEPTED);
        }
        require(good, "invalid signature");
    }

    function _move(address from, address to, uint256 value) private {
        require(from != address(0) && to != address(0), "transfer with the zero address");
        require(value <= balanceOf(from), "amount exceeds balance");
        _setBalance(from, balanceOf(from) - value);
        _setBalance(to, balanceOf(to) + value);
        emit Transfer(from, to, value);
    }

    function _setBalance(address account, uint256 balance) private {
        require(balance < SHUT_OUT, "balance is out of range");
        require(!isBlacklisted(account), "account is blacklisted");
        _balanceAndMark[account] = balance;
    }
}
