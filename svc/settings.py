"""What a client is told about its surroundings: explicitly, or through five environment variables.

SVC_BASE_URL            the coordinator
SVC_WALLET_KEY          the wallet's private key: 32 bytes of hex
SVC_CIPHER_KEY          an X25519 secret that results are sealed to: 32 bytes of hex
SVC_PIN_GATEWAY         gateways that results are read from, comma-separated; empty disables reads
SVC_SETTLEMENT_MARGIN   seconds that an order outlives its window (default 3600)
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final, Self
from urllib.parse import urlsplit

import attrs

from common.box import SecretKey
from common.refusal import Refused
from common.scalars import read_decimal
from common.secp256k1 import Wallet

DEFAULT_BASE_URL: Final = "http://127.0.0.1:8402"
PUBLIC_GATEWAY: Final = "https://ipfs.io"
DEFAULT_MARGIN: Final = 3600


@attrs.frozen(slots=True)
class Settings:
    """`gateways` is empty when reads are disabled. `cipher_key_first`: it was given on purpose, so that it is used
    even where there is a wallet to derive one from."""

    base_url: str
    gateways: tuple[str, ...]
    wallet: Wallet | None
    cipher_key: SecretKey | None
    cipher_key_first: bool
    settlement_margin: int

    @classmethod
    def resolve(
        cls,
        *,
        base_url: str | None = None,
        gateways: str | Sequence[str] | None = None,
        wallet_key: str | bytes | Wallet | None = None,
        cipher_key: str | bytes | SecretKey | None = None,
        settlement_margin: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Explicit values win; the rest comes from `environment` (the process's own unless given).

        Raises Refused, naming the variable or argument at fault and never showing a key.

        >>> settings = Settings.resolve(gateways="https://a.example/, https://b.example", environment={})
        >>> settings.base_url, settings.gateways, settings.settlement_margin
        ('http://127.0.0.1:8402', ('https://a.example', 'https://b.example'), 3600)
        """
        known = os.environ if environment is None else environment
        wallet: str | bytes | Wallet | None = wallet_key or known.get("SVC_WALLET_KEY") or None
        cipher: str | bytes | SecretKey | None = cipher_key or known.get("SVC_CIPHER_KEY") or None
        margin = known.get("SVC_SETTLEMENT_MARGIN")
        if settlement_margin is None:
            settlement_margin = read_decimal(margin, 32, "SVC_SETTLEMENT_MARGIN") if margin else DEFAULT_MARGIN
        elif settlement_margin < 0:
            raise Refused("settlement_margin must not be negative", "settlement_margin")
        return cls(
            base_url=_url(base_url or known.get("SVC_BASE_URL") or DEFAULT_BASE_URL, "SVC_BASE_URL"),
            gateways=_gateways(gateways if gateways is not None else known.get("SVC_PIN_GATEWAY", PUBLIC_GATEWAY)),
            wallet=wallet if wallet is None or isinstance(wallet, Wallet) else Wallet(_key(wallet, "SVC_WALLET_KEY")),
            cipher_key=(
                cipher if cipher is None or isinstance(cipher, SecretKey) else SecretKey(_key(cipher, "SVC_CIPHER_KEY"))
            ),
            cipher_key_first=bool(cipher_key),
            settlement_margin=settlement_margin,
        )


def _gateways(given: str | Sequence[str]) -> tuple[str, ...]:
    each = given.split(",") if isinstance(given, str) else given
    return tuple(_url(gateway, "SVC_PIN_GATEWAY") for gateway in each if gateway.strip())


def _url(given: str, name: str) -> str:
    """Without its last slash. What no request could go to is refused here, before anything is bought."""
    url = given.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname is not None and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is none
        usable = False
    if not usable:
        raise Refused(f"{name} must be an address that begins with http:// or https://", name)
    return url


def _key(given: str | bytes, name: str) -> bytes:
    if isinstance(given, bytes):
        return given
    try:
        raw = bytes.fromhex(given.strip().removeprefix("0x"))
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise Refused(f"{name} must be 32 bytes of hex", name)
    return raw
