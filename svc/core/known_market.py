"""A market as a client knows it: the facts that a coordinator may not change behind its back.

A market is known by its coordinator's address. Its facts come from an address book, or are remembered at the first
use; what the coordinator says later is held against them. A comparison is a value: what was known, what is told.
"""

from collections.abc import Mapping
from typing import Any, Final, Self
from urllib.parse import urlsplit

import attrs

from common.address_book import AddressBook
from common.box import PublicKey
from common.keccak import keccak256
from common.refusal import Refused
from common.scalars import read_hex
from common.strict_json import parse

_PORTS: Final = {"http": 80, "https": 443}
_LONGEST_KIND: Final = 64


def market_url(base_url: str) -> str:
    """The address that a market is known by: without credentials, a usual port, a last slash.

    >>> market_url("HTTPS://user:key@Market.example:443/v2/")
    'https://market.example/v2'
    """
    parts = urlsplit(base_url)
    scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    place = f"[{host}]" if ":" in host else host
    if port is not None and port != _PORTS.get(scheme):
        place = f"{place}:{port}"
    return f"{scheme}://{place}{parts.path.rstrip('/')}"


def fingerprint(book: AddressBook) -> str:
    """Sixteen digits that stand for a deployment in a command: those of another deployment differ."""
    known = book.described
    return keccak256("\n".join(f"{name}={known[name]}" for name in sorted(known)).encode())[:8].hex()


@attrs.frozen(slots=True)
class KnownMarket:
    """`escrow_keys`: the kind of evidence of each, by key; `box_keys`: by provider. All keys as 64 hex digits."""

    deployment: AddressBook
    escrow_keys: Mapping[str, str] = attrs.field(factory=dict)
    box_keys: Mapping[int, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, value: object) -> Self:
        """Reads what `as_json` gives. Raises Refused, naming what is wrong."""
        entry = _object(value, "market")
        escrow_keys, box_keys = _object(entry.get("escrowKeys"), "escrowKeys"), _object(entry.get("boxKeys"), "boxKeys")
        return cls(
            AddressBook.of(entry.get("deployment")),
            {read_key(key, "escrowKeys"): _kind(kind) for key, kind in escrow_keys.items()},
            {_provider(provider): read_key(key, "boxKeys") for provider, key in box_keys.items()},
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "deployment": self.deployment.as_json(),
            "escrowKeys": dict(self.escrow_keys),
            "boxKeys": {str(provider): key for provider, key in sorted(self.box_keys.items())},
        }

    def with_escrow_key(self, key: str, kind: str) -> Self:
        return attrs.evolve(self, escrow_keys={**self.escrow_keys, key: kind})

    def with_box_key(self, provider: int, key: str) -> Self:
        return attrs.evolve(self, box_keys={**self.box_keys, provider: key})


def read_markets(raw: bytes) -> dict[str, KnownMarket]:
    """The file of known markets: `{"version": 1, "markets": {<address>: <market>}}`. Raises Refused."""
    document = _object(parse(raw), "known markets")
    if document.get("version") != 1:
        raise Refused("the file of known markets must say version 1: another svc wrote it", "version")
    return {url: KnownMarket.of(entry) for url, entry in _object(document.get("markets"), "markets").items()}


def markets_as_json(markets: Mapping[str, KnownMarket]) -> dict[str, Any]:
    return {"version": 1, "markets": {url: market.as_json() for url, market in sorted(markets.items())}}


def read_key(given: object, param: str) -> str:
    """A key that can be sealed to, with or without 0x, as 64 hex digits."""
    text = given if isinstance(given, str) else ""
    raw = read_hex("0x" + text.lower().removeprefix("0x"), 32, param)
    return PublicKey(raw).raw.hex()


def _object(value: object, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refused(f"{param} must be a JSON object", param)
    return value


def _kind(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_KIND:
        raise Refused("the kind of an escrow's key must be a short text", "escrowKeys")
    return value


def _provider(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:11]) < 2**32):
        raise Refused("a provider's id must be a number from 1 to 4294967295", "boxKeys")
    return int(text)
