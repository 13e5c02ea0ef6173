"""Checks of a payment token before a market is built on it: it cannot be exchanged afterwards.

The functions of EIP-3009 are tried out by calls that change nothing: an account that was made up for the purpose
authorises 0 units, and the token must take what it signed and must refuse what it did not.
"""

import secrets
from collections.abc import Iterator
from typing import Final

import attrs

from common import abi
from common.address_book import TokenDomain
from common.daemon.process import Fatal
from common.eip712 import Domain, digest
from common.keccak import keccak256
from common.messages.payments import ReceiveWithAuthorization
from common.refusal import Refused
from common.secp256k1 import Wallet
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.market.contracts import checksum, explained
from coordinatord.market.node import RetryingNode
from coordinatord.market.rows import Row, checked, told
from coordinatord.market.terms import MarketTerms

_EIP712_DOMAIN: Final = "eip712Domain()"
_ARGUMENTS: Final = "(address,address,uint256,uint256,uint256,bytes32,uint8,bytes32,bytes32)"
_TRANSFER_TYPE: Final = ReceiveWithAuthorization.TYPE.replace("Receive", "Transfer").encode()
_FOREVER: Final = 2**256 - 1


@attrs.frozen(slots=True)
class TokenFacts:
    """`domain` is what the address book takes."""

    address: str
    symbol: str
    decimals: int
    domain: TokenDomain


def check_token(node: RetryingNode, terms: MarketTerms) -> tuple[TokenFacts, list[Row]]:
    """The token's facts, with a row for each thing that must be right of it. Fatal when there is no token at all."""
    code = node.code(terms.token)
    if not code:
        raise Fatal(f"token: there is no contract at {terms.token} on chain {terms.chain_id}")
    if code.startswith(b"\xef\x01\x00"):
        raise Fatal(f"token: {terms.token} is an account with a delegation (EIP-7702), no contract")
    decimals = _uint(node, terms.token, "decimals()")
    facts = TokenFacts(terms.token, _text(node, terms.token, "symbol()") or "units", decimals, _domain(node, terms))
    separator = _word(node, terms.token, "DOMAIN_SEPARATOR()")
    domain = Domain(facts.domain.name, facts.domain.version, terms.chain_id, bytes.fromhex(terms.token[2:]))
    rows = [
        told("token", f"{terms.token} ({facts.symbol}), {len(code)} bytes of code"),
        checked("token: decimals", decimals, terms.decimals),
        checked(
            f"token: signing domain of name {facts.domain.name!r}, version {facts.domain.version!r}",
            separator,
            domain.separator,
        ),
    ]
    return facts, rows + list(_authorisations(node, terms.token, domain))


def _authorisations(node: RetryingNode, token: str, domain: Domain) -> Iterator[Row]:
    payer, payee = Wallet(secrets.token_bytes(32)), secrets.token_bytes(20)
    nonce = secrets.token_bytes(32)
    used = abi.call(abi.selector("authorizationState(address,bytes32)"), abi.address(payer.address), abi.bytes32(nonce))
    yield checked("token: authorizationState of a fresh nonce", _attempt(node, token, used), "0x" + "00" * 32)
    message = ReceiveWithAuthorization(payer.address, payee, 0, 0, _FOREVER, nonce)
    receive = digest(domain.separator, keccak256(message.packed()))
    transfer = digest(domain.separator, keccak256(keccak256(_TRANSFER_TYPE) + message.packed()[32:]))
    another = secrets.token_bytes(20)
    for function, hashed in (("receiveWithAuthorization", receive), ("transferWithAuthorization", transfer)):
        good, bad = (_calldata(function, message, payer.sign(one)) for one in (hashed, keccak256(hashed)))
        yield checked(f"token: {function} as signed", _tried(node, token, good, payee), "taken")
        yield checked(f"token: {function} as nobody signed it", _refused(node, token, bad, payee), "refused")
    stolen = _calldata("receiveWithAuthorization", message, payer.sign(receive))
    yield checked("token: receiveWithAuthorization sent by another", _refused(node, token, stolen, another), "refused")


def _calldata(function: str, message: ReceiveWithAuthorization, signature: bytes) -> bytes:
    return abi.call(
        abi.selector(function + _ARGUMENTS),
        abi.address(message.from_),
        abi.address(message.to),
        abi.uint(message.value),
        abi.uint(message.valid_after),
        abi.uint(message.valid_before),
        abi.bytes32(message.nonce),
        abi.uint(signature[64]),
        abi.bytes32(signature[:32]),
        abi.bytes32(signature[32:64]),
    )


def _tried(node: RetryingNode, token: str, data: bytes, sender: bytes) -> str:
    answer = _attempt(node, token, data, sender=checksum(sender))
    return "taken" if answer.startswith("0x") else answer


def _refused(node: RetryingNode, token: str, data: bytes, sender: bytes) -> str:
    """Why does not matter here."""
    return "taken" if _tried(node, token, data, sender) == "taken" else "refused"


def _domain(node: RetryingNode, terms: MarketTerms) -> TokenDomain:
    """As the operator says, else as the token says: EIP-5267, or `name` and `version` as FiatToken has them."""
    name, version = terms.token_name, terms.token_version
    if name is None or version is None:
        told_name, told_version = _told_domain(node, terms.token)
        name, version = name or told_name, version or told_version
    if not name or not version:
        raise Fatal("token: it does not tell the name and version of its signing domain: set token_name, token_version")
    return TokenDomain(name, version)


def _told_domain(node: RetryingNode, token: str) -> tuple[str, str]:
    try:
        answer = node.call(token, abi.call(abi.selector(_EIP712_DOMAIN)))
        return abi.text_at(answer, 1, 7), abi.text_at(answer, 2, 7)  # of seven words
    except (RpcError, Refused):
        return _text(node, token, "name()"), _text(node, token, "version()")


def _text(node: RetryingNode, token: str, signature: str) -> str:
    try:
        return abi.text_at(node.call(token, abi.call(abi.selector(signature))), 0)
    except (RpcError, Refused):
        return ""


def _word(node: RetryingNode, token: str, signature: str) -> str:
    return _attempt(node, token, abi.call(abi.selector(signature)))


def _uint(node: RetryingNode, token: str, signature: str) -> int:
    try:
        return abi.uint_at(node.call(token, abi.call(abi.selector(signature))), 0, 8)
    except (RpcError, Refused) as error:
        raise Fatal(f"token: {token} does not answer {signature} as a token does: {error}") from None


def _attempt(node: RetryingNode, token: str, data: bytes, sender: str | None = None) -> str:
    """The answer in hex, or why there is none."""
    try:
        return "0x" + node.call(token, data, sender).hex()
    except RpcError as error:
        if error.meaning is not Meaning.REVERTED:
            raise
        return f"refused: {explained(error.data)}"
