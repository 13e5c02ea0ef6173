"""Settings of a client, from arguments, environment variables or a profile.

SVC_BASE_URL            the coordinator
SVC_WALLET_KEY, SVC_WALLET_KEY_FILE, SVC_KEYSTORE, SVC_SIGNER_COMMAND
                        the wallet, see svc.wallets
SVC_CIPHER_KEY          the X25519 secret that opens results: 32 bytes of hex
SVC_PIN_GATEWAY         gateways to read results from, comma-separated; empty disables reading
SVC_SETTLEMENT_MARGIN   seconds from the end of the window to the order's expiry (default 3600)
SVC_ADDRESSES_FILE      the market's address book; a coordinator with other contracts is rejected
SVC_KNOWN_MARKETS       the file of known markets, see svc.known_markets; empty: keep them in memory
SVC_RPC_URL             nodes of the chain to check the coordinator against, comma-separated; they must agree
SVC_MAX_AMOUNT          maximum amount of an order or a batch line, in base units (default: one token)
SVC_MAX_BATCH_AMOUNT    maximum amount of a whole batch, in base units (default: ten tokens)
SVC_INSECURE_HTTP       1: allow plain http:// to other machines, which the network can read and change

SVC_CONFIG, SVC_PROFILE the profiles file and the profile to use, see svc.profiles

An argument overrides the environment, which overrides the profile, which overrides the default.
"""

import os
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import attrs

from common.address_book import AddressBook
from common.box import SecretKey
from common.refusal import Refused
from common.scalars import read_decimal
from common.secp256k1 import Wallet
from svc.profiles import NAME_VARIABLE, with_profile
from svc.signers import LocalSigner, Signer
from svc.wallets import read_signer

DEFAULT_BASE_URL: Final = "http://127.0.0.1:8402"
PUBLIC_GATEWAY: Final = "https://ipfs.io"
DEFAULT_MARGIN_SECONDS: Final = 3600
_MAX_BOOK_BYTES: Final = 1 << 16
_TRUE_TEXTS: Final = frozenset({"1", "true", "yes", "on"})
_FALSE_TEXTS: Final = frozenset({"", "0", "false", "no", "off"})


@attrs.frozen(slots=True)
class Settings:
    """Resolved settings.

    `gateways` is empty if reading is disabled. `cipher_key_first`: the cipher key was given as an argument, so it is
    used even if the wallet could derive one. `addresses` pins the deployment.
    """

    base_url: str
    gateways: tuple[str, ...]
    signer: Signer | None
    cipher_key: SecretKey | None
    cipher_key_first: bool
    settlement_margin: int
    addresses: AddressBook | None
    rpc_urls: tuple[str, ...]
    max_amount: int | None
    max_batch_amount: int | None
    environment: Mapping[str, str] = attrs.field(repr=False)

    @classmethod
    def resolve(
        cls,
        *,
        base_url: str | None = None,
        gateways: str | Sequence[str] | None = None,
        wallet_key: str | bytes | Wallet | None = None,
        cipher_key: str | bytes | SecretKey | None = None,
        settlement_margin: int | None = None,
        addresses: AddressBook | Path | str | None = None,
        rpc_url: str | Sequence[str] | None = None,
        max_amount: int | None = None,
        max_batch_amount: int | None = None,
        insecure_http: bool | None = None,
        profile: str | None = None,
        without_wallet: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Resolve settings from arguments, `environment` (default: the process's) and the profile, in this order.

        `without_wallet` ignores wallet settings, so that no password is asked for. Raises Refused with the name of the
        wrong variable or argument; no message shows a key.

        >>> settings = Settings.resolve(gateways="https://a.example/, https://b.example", environment={})
        >>> settings.base_url, settings.gateways, settings.settlement_margin
        ('http://127.0.0.1:8402', ('https://a.example', 'https://b.example'), 3600)
        """
        variables = os.environ if environment is None else environment
        variables = with_profile({**variables, NAME_VARIABLE: profile} if profile else variables)
        cipher: str | bytes | SecretKey | None = cipher_key or variables.get("SVC_CIPHER_KEY") or None
        margin = variables.get("SVC_SETTLEMENT_MARGIN")
        if settlement_margin is None:
            settlement_margin = read_decimal(margin, 32, "SVC_SETTLEMENT_MARGIN") if margin else DEFAULT_MARGIN_SECONDS
        elif settlement_margin < 0:
            raise Refused("settlement_margin must not be negative", "settlement_margin")
        insecure = _flag(variables, "SVC_INSECURE_HTTP") if insecure_http is None else insecure_http
        return cls(
            base_url=secure_url(
                base_url or variables.get("SVC_BASE_URL") or DEFAULT_BASE_URL, "SVC_BASE_URL", insecure
            ),
            gateways=_gateways(gateways if gateways is not None else variables.get("SVC_PIN_GATEWAY", PUBLIC_GATEWAY)),
            signer=_signer(wallet_key, without_wallet, variables),
            cipher_key=(
                cipher if cipher is None or isinstance(cipher, SecretKey) else SecretKey(_key(cipher, "SVC_CIPHER_KEY"))
            ),
            cipher_key_first=bool(cipher_key),
            settlement_margin=settlement_margin,
            addresses=_book(addresses or variables.get("SVC_ADDRESSES_FILE") or None),
            rpc_urls=node_urls(rpc_url, insecure, variables),
            max_amount=_amount(max_amount, variables, "SVC_MAX_AMOUNT"),
            max_batch_amount=_amount(max_batch_amount, variables, "SVC_MAX_BATCH_AMOUNT"),
            environment=variables,
        )


def _signer(value: str | bytes | Wallet | None, without_wallet: bool, variables: Mapping[str, str]) -> Signer | None:
    if without_wallet:
        return None
    if not value:
        return read_signer(variables)
    return LocalSigner(value if isinstance(value, Wallet) else Wallet(_key(value, "SVC_WALLET_KEY")))


def _gateways(value: str | Sequence[str]) -> tuple[str, ...]:
    parts_ = value.split(",") if isinstance(value, str) else value
    return tuple(_url(gateway, "SVC_PIN_GATEWAY") for gateway in parts_ if gateway.strip())


def node_urls(
    value: str | Sequence[str] | None, insecure: bool | None = None, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the given nodes, or else the nodes in SVC_RPC_URL. Raises Refused."""
    variables = with_profile(os.environ) if environment is None else environment
    names = variables.get("SVC_RPC_URL", "") if value is None else value
    parts_ = names.split(",") if isinstance(names, str) else names
    allowed = _flag(variables, "SVC_INSECURE_HTTP") if insecure is None else insecure
    return tuple(dict.fromkeys(secure_url(node, "SVC_RPC_URL", allowed) for node in parts_ if node.strip()))


def _book(value: AddressBook | Path | str | None) -> AddressBook | None:
    if value is None or isinstance(value, AddressBook):
        return value
    try:
        with Path(value).open("rb") as file:
            raw = file.read(_MAX_BOOK_BYTES)
    except OSError as error:
        message = f"cannot read the address book {value}: {error.strerror}; check --addresses or SVC_ADDRESSES_FILE"
        raise Refused(message, "SVC_ADDRESSES_FILE") from None
    try:
        return AddressBook.parse(raw)
    except Refused as refusal:
        raise Refused(f"the address book {value}: {refusal.message}", "SVC_ADDRESSES_FILE") from None


def _amount(value: int | None, variables: Mapping[str, str], name: str) -> int | None:
    if value is None:
        text = variables.get(name)
        return read_decimal(text, 256, name) if text else None
    if value < 0:
        raise Refused(f"{name.removeprefix('SVC_').lower()} must not be negative", name)
    return value


def _flag(variables: Mapping[str, str], name: str) -> bool:
    text = variables.get(name, "").strip().lower()
    if text not in _TRUE_TEXTS | _FALSE_TEXTS:
        raise Refused(f"{name} must be 1 or 0", name)
    return text in _TRUE_TEXTS


def secure_url(value: str, name: str, insecure: bool) -> str:
    """Check that a URL is https, or plain http to this machine."""
    url = _url(value, name)
    parts = urlsplit(url)
    if parts.scheme == "http" and not insecure and not _is_loopback(parts.hostname or ""):
        message = f"{name} must be an https:// address: the network can change plain http to {parts.hostname}"
        raise Refused(f"{message}; use --insecure-http or SVC_INSECURE_HTTP=1 to allow it", name)
    return url


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _url(value: str, name: str) -> str:
    """Return a URL without its trailing slash. Reject an unusable URL before anything is bought."""
    url = value.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname is not None and parts.port != 0
    except ValueError:  # unclosed brackets or an invalid port
        usable = False
    if not usable:
        raise Refused(f"{name} must be a URL that begins with http:// or https://", name)
    return url


def _key(value: str | bytes, name: str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        raw = bytes.fromhex(value.strip().removeprefix("0x"))
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise Refused(f"{name} must be 32 bytes of hex", name)
    return raw
