"""Checks of a payment token before a market is deployed, because a market's token cannot be replaced.

The EIP-3009 functions are tested with calls that change nothing. A temporary account signs an authorisation of 0 units.
The token must accept it, and must reject one with a wrong signature.
"""

import secrets
from collections.abc import Iterator
from typing import Final

import attrs
from eth_abi.exceptions import DecodingError
from eth_utils.abi import function_signature_to_4byte_selector
from hexbytes import HexBytes
from web3 import Web3

from common.address_book import TokenDomain
from common.checks import CheckRow, compared, fact
from common.daemon.process import Fatal
from common.eip712 import Domain, digest
from common.keccak import keccak256
from common.messages.payments import ReceiveWithAuthorization
from common.refusal import Refused
from common.secp256k1 import Wallet
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.market.contracts import Contract, checksum, explained
from coordinatord.market.node import code_at, eth_call
from coordinatord.market.terms import MarketTerms

_INTERFACE: Final = "DevToken"  # has every function that is checked
_TRANSFER_TYPE: Final = ReceiveWithAuthorization.TYPE.replace("Receive", "Transfer").encode()
_FOREVER: Final = 2**256 - 1


@attrs.frozen(slots=True)
class TokenFacts:
    """`domain` is written to the address book."""

    address: str
    symbol: str
    decimals: int
    domain: TokenDomain


def check_token(node: Web3, terms: MarketTerms) -> tuple[TokenFacts, list[CheckRow]]:
    """Return the token's facts, with a row for each check. Raise Fatal if the contract is not a token."""
    code = code_at(node, terms.token)
    if not code:
        raise Fatal(f"token: there is no contract at {terms.token} on chain {terms.chain_id}")
    if code.startswith(b"\xef\x01\x00"):
        raise Fatal(f"token: {terms.token} is an account with a delegation (EIP-7702), no contract")
    token = Contract(_INTERFACE, terms.token)
    decimals = _decimals(node, token)
    facts = TokenFacts(terms.token, _text(node, token, "symbol") or "units", decimals, _domain(node, token, terms))
    separator = _attempt(node, token, token.calldata("DOMAIN_SEPARATOR"))
    domain = Domain(facts.domain.name, facts.domain.version, terms.chain_id, bytes.fromhex(terms.token[2:]))
    rows = [
        fact("token", f"{terms.token} ({facts.symbol}), {len(code)} bytes of code"),
        compared("token: decimals", decimals, terms.decimals),
        compared(
            f"token: signing domain of name {facts.domain.name!r}, version {facts.domain.version!r}",
            separator,
            domain.separator,
        ),
    ]
    return facts, rows + list(_authorisations(node, token, domain))


def _authorisations(node: Web3, token: Contract, domain: Domain) -> Iterator[CheckRow]:
    payer, payee = Wallet(secrets.token_bytes(32)), secrets.token_bytes(20)
    nonce = secrets.token_bytes(32)
    used = token.calldata("authorizationState", checksum(payer.address), nonce)
    yield compared("token: authorizationState of a fresh nonce", _attempt(node, token, used), "0x" + "00" * 32)
    message = ReceiveWithAuthorization(payer.address, payee, 0, 0, _FOREVER, nonce)
    receive = digest(domain.separator, keccak256(message.packed()))
    transfer = digest(domain.separator, keccak256(keccak256(_TRANSFER_TYPE) + message.packed()[32:]))
    another = secrets.token_bytes(20)
    for function, hashed in (("receiveWithAuthorization", receive), ("transferWithAuthorization", transfer)):
        good, bad = (_calldata(token, function, message, payer.sign(one)) for one in (hashed, keccak256(hashed)))
        yield compared(f"token: {function} as signed", _tried(node, token, good, payee), "taken")
        yield compared(f"token: {function} with a wrong signature", _refused(node, token, bad, payee), "refused")
    stolen = _calldata(token, "receiveWithAuthorization", message, payer.sign(receive))
    yield compared("token: receiveWithAuthorization sent by another", _refused(node, token, stolen, another), "refused")


def _calldata(token: Contract, function: str, message: ReceiveWithAuthorization, signature: bytes) -> bytes:
    return token.calldata(
        function,
        checksum(message.from_),
        checksum(message.to),
        message.value,
        message.valid_after,
        message.valid_before,
        message.nonce,
        signature[64],
        signature[:32],
        signature[32:64],
    )


def _tried(node: Web3, token: Contract, data: bytes, sender: bytes) -> str:
    answer = _attempt(node, token, data, sender=checksum(sender))
    return "taken" if answer.startswith("0x") else answer


def _refused(node: Web3, token: Contract, data: bytes, sender: bytes) -> str:
    return "taken" if _tried(node, token, data, sender) == "taken" else "refused"


def _domain(node: Web3, token: Contract, terms: MarketTerms) -> TokenDomain:
    """Return the token's signing domain. If the terms lack its name or version, call the token's `eip712Domain`
    (EIP-5267), or else its `name` and `version`."""
    name, version = terms.token_name, terms.token_version
    if name is None or version is None:
        reported_name, reported_version = _reported_domain(node, token)
        name, version = name or reported_name, version or reported_version
    if not name or not version:
        raise Fatal(
            "token: it does not report the name and version of its signing domain: set token_name, token_version"
        )
    return TokenDomain(name, version)


def _reported_domain(node: Web3, token: Contract) -> tuple[str, str]:
    try:
        domain = token.read(node, "eip712Domain")
    except (Fatal, Refused, RpcError):
        return _text(node, token, "name"), _text(node, token, "version")
    return domain[1], domain[2]


def _text(node: Web3, token: Contract, function: str) -> str:
    """Call the token's function. Return an empty string if it does not exist or does not return a string."""
    selector = HexBytes(function_signature_to_4byte_selector(f"{function}()"))
    try:
        [text] = node.codec.decode(["string"], eth_call(node, token.address, selector))
    except (RpcError, DecodingError, UnicodeDecodeError):
        return ""
    return str(text)


def _decimals(node: Web3, token: Contract) -> int:
    try:
        return int(token.read(node, "decimals"))
    except (Fatal, Refused, RpcError) as error:
        raise Fatal(f"token: {token.address} does not answer decimals() as a token does: {error}") from None


def _attempt(node: Web3, token: Contract, data: bytes, sender: str | None = None) -> str:
    """Return the answer in hex, or the reason for the revert."""
    try:
        return "0x" + eth_call(node, token.address, data, sender).hex()
    except RpcError as error:
        if error.meaning is not Meaning.REVERTED:
            raise
        return f"refused: {explained(error.data)}"
