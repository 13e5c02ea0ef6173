"""Address book: the chain and the contracts of one deployment of the market."""

from typing import Final, Self

import attrs

from common.refusal import Refused
from common.scalars import hex_of, read_hex, read_uint
from common.strict_json import parse

MAX_TOKEN_DECIMALS: Final = 36

_BOOK_KEYS: Final = (
    "chainId",
    "deployBlock",
    "jobRegistry",
    "providerRegistry",
    "askRegistry",
    "paytoken",
    "paymentTokenDecimals",
    "tokenDomain",
)
_TOKEN_DOMAIN_KEYS: Final = ("name", "version")


@attrs.frozen(slots=True)
class TokenDomain:
    """The payment token's EIP-712 name and version."""

    name: str
    version: str


@attrs.frozen(slots=True)
class AddressBook:
    """Chain, contract addresses and payment token of one deployment."""

    chain_id: int
    deploy_block: int
    job_registry: bytes
    provider_registry: bytes
    ask_registry: bytes
    paytoken: bytes
    payment_token_decimals: int
    token_domain: TokenDomain

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read an address book from JSON. Raise Refused with the name of a missing, unknown or malformed key."""
        return cls.from_json(parse(raw))

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read an address book from parsed JSON."""
        book = _read_object(value, None, _BOOK_KEYS)
        token_domain = _read_object(book["tokenDomain"], "tokenDomain", _TOKEN_DOMAIN_KEYS)
        return cls(
            chain_id=_read_chain_id(book["chainId"]),
            deploy_block=read_uint(book["deployBlock"], 53, "deployBlock"),
            job_registry=_read_contract_address(book["jobRegistry"], "jobRegistry"),
            provider_registry=_read_contract_address(book["providerRegistry"], "providerRegistry"),
            ask_registry=_read_contract_address(book["askRegistry"], "askRegistry"),
            paytoken=_read_contract_address(book["paytoken"], "paytoken"),
            payment_token_decimals=_read_token_decimals(book["paymentTokenDecimals"]),
            token_domain=TokenDomain(
                name=_read_text(token_domain["name"], "tokenDomain.name"),
                version=_read_text(token_domain["version"], "tokenDomain.version"),
            ),
        )

    def as_json(self) -> dict[str, object]:
        """Return the book as a JSON value, from which `from_json` reads an equal book."""
        return {
            "chainId": self.chain_id,
            "deployBlock": self.deploy_block,
            "jobRegistry": hex_of(self.job_registry),
            "providerRegistry": hex_of(self.provider_registry),
            "askRegistry": hex_of(self.ask_registry),
            "paytoken": hex_of(self.paytoken),
            "paymentTokenDecimals": self.payment_token_decimals,
            "tokenDomain": {"name": self.token_domain.name, "version": self.token_domain.version},
        }

    @property
    def labelled_values(self) -> dict[str, str]:
        """Return all values except the deploy block as text by label, for display and comparison."""
        return {
            "chain id": str(self.chain_id),
            "job registry": hex_of(self.job_registry),
            "provider registry": hex_of(self.provider_registry),
            "ask registry": hex_of(self.ask_registry),
            "payment token": hex_of(self.paytoken),
            "token decimals": str(self.payment_token_decimals),
            "token's signing domain": f"{self.token_domain.name!r} version {self.token_domain.version!r}",
        }

    def differences(self, reported: Self) -> list[str]:
        """Return a line for each of `labelled_values` that differs from the reported address book.

        >>> book = AddressBook(1, 0, bytes(20), bytes(20), bytes(20), bytes(20), 6, TokenDomain("Dollar", "1"))
        >>> book.differences(attrs.evolve(book, deploy_block=7, chain_id=5))
        ['chain id: expected 1, reported 5']
        """
        ours, theirs = self.labelled_values, reported.labelled_values
        return [
            f"{label}: expected {ours[label]}, reported {theirs[label]}"
            for label in ours
            if ours[label] != theirs[label]
        ]


def _read_object(value: object, param: str | None, keys: tuple[str, ...]) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Refused(f"{param or 'the address book'} must be a JSON object", param)
    prefix = f"{param}." if param else ""
    for key in value:
        if key not in keys:
            raise Refused(f"{prefix}{key} is not a key of the address book", prefix + key)
    for key in keys:
        if key not in value:
            raise Refused(f"{prefix}{key} is missing from the address book", prefix + key)
    return value


def _read_chain_id(value: object) -> int:
    # The API sends the chain id as a JSON number, so the chain id must be below 2^53.
    chain_id = read_uint(value, 53, "chainId")
    if chain_id == 0:
        raise Refused("chainId must not be 0", "chainId")
    return chain_id


def _read_contract_address(value: object, param: str) -> bytes:
    address = read_hex(value, 20, param)
    if not any(address):
        raise Refused(f"{param} must not be the zero address", param)
    return address


def _read_token_decimals(value: object) -> int:
    decimals = read_uint(value, 53, "paymentTokenDecimals")
    if decimals > MAX_TOKEN_DECIMALS:
        raise Refused(f"paymentTokenDecimals must be in 0..{MAX_TOKEN_DECIMALS}", "paymentTokenDecimals")
    return decimals


def _read_text(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise Refused(f"{param} must be a non-empty string", param)
    return value
