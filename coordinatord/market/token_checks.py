"""Check a payment token before a market is deployed, because a market's token cannot be replaced.

The EIP-3009 functions are tested with simulated calls. A temporary account signs an authorisation of 0 units. The token
must accept this authorisation, and must reject an authorisation with a wrong signature.
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
from common.checks import CheckRow, comparison_row, fact
from common.daemon.process import Fatal
from common.eip712 import Domain, digest
from common.keccak import keccak256
from common.messages.payments import ReceiveWithAuthorization
from common.refusal import Refused
from common.secp256k1 import Wallet
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.market.contracts import Contract, checksum_address, explain_revert
from coordinatord.market.node import eth_call, read_code
from coordinatord.market.terms import MarketTerms

_CHECKED_INTERFACE: Final = "DevToken"  # has every function that is checked
_TRANSFER_TYPE: Final = ReceiveWithAuthorization.TYPE.replace("Receive", "Transfer").encode()
_NO_EXPIRY: Final = 2**256 - 1


@attrs.frozen(slots=True)
class TokenFacts:
    """Facts that the token reports. `domain` is written to the address book."""

    address: str
    symbol: str
    decimals: int
    domain: TokenDomain


def check_token(node: Web3, terms: MarketTerms) -> tuple[TokenFacts, list[CheckRow]]:
    """Return the token's facts, with a row for each check. Raise Fatal if the contract is not a token."""
    code = read_code(node, terms.token)
    if not code:
        raise Fatal(f"token: there is no contract at {terms.token} on chain {terms.chain_id}: correct the terms")
    if code.startswith(b"\xef\x01\x00"):
        raise Fatal(f"token: {terms.token} is an account with a delegation (EIP-7702), not a contract")
    token = Contract(_CHECKED_INTERFACE, terms.token)
    decimals = _read_decimals(node, token)
    facts = TokenFacts(
        terms.token, _read_text(node, token, "symbol") or "units", decimals, _read_domain(node, token, terms)
    )
    separator = _simulate_call(node, token, token.calldata("DOMAIN_SEPARATOR"))
    domain = Domain(facts.domain.name, facts.domain.version, terms.chain_id, bytes.fromhex(terms.token[2:]))
    rows = [
        fact("token", f"{terms.token} ({facts.symbol}), {len(code)} bytes of code"),
        comparison_row("token: decimals", decimals, terms.decimals),
        comparison_row(
            f"token: signing domain of name {facts.domain.name!r}, version {facts.domain.version!r}",
            separator,
            domain.separator,
        ),
    ]
    return facts, rows + list(_check_authorisations(node, token, domain))


def _check_authorisations(node: Web3, token: Contract, domain: Domain) -> Iterator[CheckRow]:
    payer, payee = Wallet(secrets.token_bytes(32)), secrets.token_bytes(20)
    nonce = secrets.token_bytes(32)
    used = token.calldata("authorizationState", checksum_address(payer.address), nonce)
    yield comparison_row(
        "token: authorizationState of a fresh nonce", _simulate_call(node, token, used), "0x" + "00" * 32
    )
    message = ReceiveWithAuthorization(payer.address, payee, 0, 0, _NO_EXPIRY, nonce)
    receive = digest(domain.separator, keccak256(message.packed()))
    transfer = digest(domain.separator, keccak256(keccak256(_TRANSFER_TYPE) + message.packed()[32:]))
    another = secrets.token_bytes(20)
    for function, hashed in (("receiveWithAuthorization", receive), ("transferWithAuthorization", transfer)):
        good, bad = (
            _transfer_calldata(token, function, message, payer.sign(message_digest))
            for message_digest in (hashed, keccak256(hashed))
        )
        yield comparison_row(f"token: {function} as signed", _try_transfer(node, token, good, payee), "accepted")
        yield comparison_row(
            f"token: {function} with a wrong signature", _try_forged_transfer(node, token, bad, payee), "refused"
        )
    stolen = _transfer_calldata(token, "receiveWithAuthorization", message, payer.sign(receive))
    yield comparison_row(
        "token: receiveWithAuthorization sent by another account",
        _try_forged_transfer(node, token, stolen, another),
        "refused",
    )


def _transfer_calldata(token: Contract, function: str, message: ReceiveWithAuthorization, signature: bytes) -> bytes:
    return token.calldata(
        function,
        checksum_address(message.from_),
        checksum_address(message.to),
        message.value,
        message.valid_after,
        message.valid_before,
        message.nonce,
        signature[64],
        signature[:32],
        signature[32:64],
    )


def _try_transfer(node: Web3, token: Contract, data: bytes, sender: bytes) -> str:
    answer = _simulate_call(node, token, data, sender=checksum_address(sender))
    return "accepted" if answer.startswith("0x") else answer


def _try_forged_transfer(node: Web3, token: Contract, data: bytes, sender: bytes) -> str:
    return "accepted" if _try_transfer(node, token, data, sender) == "accepted" else "refused"


def _read_domain(node: Web3, token: Contract, terms: MarketTerms) -> TokenDomain:
    """Return the token's signing domain. If the terms lack the domain's name or version, read them from the token:
    from `eip712Domain` (EIP-5267), or from `name` and `version` if that call fails."""
    name, version = terms.token_name, terms.token_version
    if name is None or version is None:
        reported_name, reported_version = _read_reported_domain(node, token)
        name, version = name or reported_name, version or reported_version
    if not name or not version:
        raise Fatal(
            "token: the contract does not report the name and version of its signing domain: set token_name and "
            "token_version"
        )
    return TokenDomain(name, version)


def _read_reported_domain(node: Web3, token: Contract) -> tuple[str, str]:
    try:
        domain = token.read(node, "eip712Domain")
    except (Fatal, Refused, RpcError):
        return _read_text(node, token, "name"), _read_text(node, token, "version")
    return domain[1], domain[2]


def _read_text(node: Web3, token: Contract, function: str) -> str:
    """Call a function of the token. Return an empty string if the function does not exist or returns no string."""
    selector = HexBytes(function_signature_to_4byte_selector(f"{function}()"))
    try:
        [text] = node.codec.decode(["string"], eth_call(node, token.address, selector))
    except (RpcError, DecodingError, UnicodeDecodeError):
        return ""
    return str(text)


def _read_decimals(node: Web3, token: Contract) -> int:
    try:
        return int(token.read(node, "decimals"))
    except (Fatal, Refused, RpcError) as error:
        raise Fatal(f"token: {token.address} has no valid decimals(), so it is not a token: {error}") from None


def _simulate_call(node: Web3, token: Contract, data: bytes, sender: str | None = None) -> str:
    """Simulate a call. Return the answer in hex, or the reason for the revert."""
    try:
        return "0x" + eth_call(node, token.address, data, sender).hex()
    except RpcError as error:
        if error.kind is not RpcErrorKind.REVERTED:
            raise
        return f"refused: {explain_revert(error.data)}"
