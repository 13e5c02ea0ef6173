"""Remembered facts of a market, with which the coordinator's later answers are compared.

The coordinator's address identifies a market. The facts come from an address book or from the first use of the market.
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

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_MAX_KIND_LENGTH: Final = 64


def market_url(base_url: str) -> str:
    """Return the address that identifies a market: without credentials, default port and trailing slash.

    >>> market_url("HTTPS://user:key@Market.example:443/v2/")
    'https://market.example/v2'
    """
    parts = urlsplit(base_url)
    scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    netloc = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS.get(scheme):
        netloc = f"{netloc}:{port}"
    return f"{scheme}://{netloc}{parts.path.rstrip('/')}"


def deployment_fingerprint(book: AddressBook) -> str:
    """Return sixteen hex digits that identify a deployment on the command line."""
    fields = book.labelled_values
    return keccak256("\n".join(f"{name}={fields[name]}" for name in sorted(fields)).encode())[:8].hex()


@attrs.frozen(slots=True)
class KnownMarket:
    """Remembered facts of a market.

    `escrow_keys`: kind of evidence by escrow key. `box_keys`: box key by provider id. Keys are 64 hex digits.
    """

    deployment: AddressBook
    escrow_keys: Mapping[str, str] = attrs.field(factory=dict)
    box_keys: Mapping[int, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, value: object) -> Self:
        """Create the market from the JSON that `as_json` returned. Raises Refused."""
        entry = _read_object(value, "market")
        escrow_keys, box_keys = (
            _read_object(entry.get("escrowKeys"), "escrowKeys"),
            _read_object(entry.get("boxKeys"), "boxKeys"),
        )
        return cls(
            AddressBook.from_json(entry.get("deployment")),
            {read_key(key, "escrowKeys"): _read_kind(kind) for key, kind in escrow_keys.items()},
            {_read_provider(provider): read_key(key, "boxKeys") for provider, key in box_keys.items()},
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
    """Read the file of known markets: `{"version": 1, "markets": {<address>: <market>}}`. Raises Refused."""
    document = _read_object(parse(raw), "known markets")
    if document.get("version") != 1:
        raise Refused(
            "the file of known markets must have version 1: use the release of svc that wrote the file", "version"
        )
    return {url: KnownMarket.of(entry) for url, entry in _read_object(document.get("markets"), "markets").items()}


def markets_as_json(markets: Mapping[str, KnownMarket]) -> dict[str, Any]:
    return {"version": 1, "markets": {url: market.as_json() for url, market in sorted(markets.items())}}


def read_key(value: object, param: str) -> str:
    """Return a box key or escrow key as 64 hex digits. The value may begin with 0x. Raises Refused."""
    text = value if isinstance(value, str) else ""
    raw = read_hex("0x" + text.lower().removeprefix("0x"), 32, param)
    return PublicKey(raw).raw.hex()


def _read_object(value: object, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refused(f"{param} must be a JSON object", param)
    return value


def _read_kind(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_KIND_LENGTH:
        message = f"the kind of an escrow's key must be a text of at most {_MAX_KIND_LENGTH} characters"
        raise Refused(message, "escrowKeys")
    return value


def _read_provider(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:11]) < 2**32):
        raise Refused("a provider's id must be a number from 1 to 4294967295", "boxKeys")
    return int(text)
