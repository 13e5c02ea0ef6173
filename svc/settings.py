"""Settings of a client, from arguments, environment variables or a profile.

An argument overrides the environment, which overrides the profile, which overrides the default. The variables are in
`svc.variables`.
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
from common.secp256k1 import Wallet
from common.settings.kinds import read_text, url
from svc.known_markets import known_markets_path
from svc.profiles import PROFILE_VARIABLE, read_variables
from svc.signers import LocalSigner, Signer
from svc.variables import Variables
from svc.wallets import read_signer
from svc.wire.direct import DirectPolicy

_MAX_ADDRESS_BOOK_BYTES: Final = 1 << 16
_BATCH_CEILING_FACTOR: Final = 10  # default limit of a batch, as a multiple of an order's limit


@attrs.frozen(slots=True)
class Settings:
    """Resolved settings.

    `gateways` is empty if reading results is disabled. `cipher_key_first` is True if the cipher key was passed as an
    argument. New results are then sealed to the cipher key instead of the key derived from the wallet. `addresses` pins
    the deployment. `known_markets` is the file of known markets, or None. `tab_direct`: addresses at which tabs connect
    to providers.
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
    known_markets: Path | None
    tab_direct: DirectPolicy = "public"

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
        tab_direct: DirectPolicy = "public",
        insecure_http: bool | None = None,
        profile: str | None = None,
        without_wallet: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Resolve settings from arguments, `environment` (default: the process's) and the profile, in this order.

        `without_wallet` ignores the wallet settings. Raises Refused, which names the wrong variable or argument, but
        never shows a key.

        >>> settings = Settings.resolve(gateways="https://a.example/, https://b.example", environment={})
        >>> settings.base_url, settings.gateways, settings.settlement_margin
        ('http://127.0.0.1:8402', ('https://a.example', 'https://b.example'), 3600)
        """
        environ = os.environ if environment is None else environment
        variables = read_variables({**environ, PROFILE_VARIABLE: profile} if profile else environ)
        cipher = cipher_key or variables.cipher_key
        if settlement_margin is not None and settlement_margin < 0:
            raise Refused("settlement_margin must not be negative", "settlement_margin")
        insecure = variables.insecure_http if insecure_http is None else insecure_http
        ceiling = _resolve_amount(max_amount, "max_amount", variables.max_amount)
        return cls(
            base_url=require_secure_url(base_url or variables.base_url, "SVC_BASE_URL", insecure),
            gateways=variables.pin_gateway if gateways is None else _read_urls(gateways, "SVC_PIN_GATEWAY"),
            signer=_resolve_signer(wallet_key, without_wallet, variables),
            cipher_key=(
                cipher
                if cipher is None or isinstance(cipher, SecretKey)
                else SecretKey(_read_key(cipher, "SVC_CIPHER_KEY"))
            ),
            cipher_key_first=bool(cipher_key),
            settlement_margin=variables.settlement_margin if settlement_margin is None else settlement_margin,
            addresses=_resolve_address_book(addresses or variables.addresses_file),
            rpc_urls=_resolve_nodes(rpc_url, insecure, variables),
            max_amount=ceiling,
            max_batch_amount=_resolve_amount(
                max_batch_amount, "max_batch_amount", None if ceiling is None else _BATCH_CEILING_FACTOR * ceiling
            ),
            known_markets=known_markets_path(variables.known_markets, environ),
            tab_direct=tab_direct,
        )


def _resolve_signer(value: str | bytes | Wallet | None, without_wallet: bool, variables: Variables) -> Signer | None:
    if without_wallet:
        return None
    if not value:
        return read_signer(variables)
    return LocalSigner(value if isinstance(value, Wallet) else Wallet(_read_key(value, "SVC_WALLET_KEY")))


def _read_urls(value: str | Sequence[str], name: str) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(read_text(url, part.strip(), name) for part in parts if part.strip()))


def node_urls(value: str | Sequence[str] | None, insecure: bool | None = None) -> tuple[str, ...]:
    """Return the node URLs in `value`, or in SVC_RPC_URL if `value` is None. Raises Refused."""
    variables = read_variables(os.environ)
    return _resolve_nodes(value, variables.insecure_http if insecure is None else insecure, variables)


def _resolve_nodes(value: str | Sequence[str] | None, insecure: bool, variables: Variables) -> tuple[str, ...]:
    nodes = variables.rpc_url if value is None else _read_urls(value, "SVC_RPC_URL")
    return tuple(dict.fromkeys(require_secure_url(node, "SVC_RPC_URL", insecure) for node in nodes))


def _resolve_address_book(value: AddressBook | Path | str | None) -> AddressBook | None:
    if value is None or isinstance(value, AddressBook):
        return value
    try:
        with Path(value).open("rb") as file:
            raw = file.read(_MAX_ADDRESS_BOOK_BYTES)
    except OSError as error:
        message = f"cannot read the address book {value}: {error.strerror}; check --addresses or SVC_ADDRESSES_FILE"
        raise Refused(message, "SVC_ADDRESSES_FILE") from None
    try:
        return AddressBook.parse(raw)
    except Refused as refusal:
        raise Refused(f"the address book {value}: {refusal.message}", "SVC_ADDRESSES_FILE") from None


def _resolve_amount(value: int | None, name: str, default: int | None) -> int | None:
    if value is not None and value < 0:
        raise Refused(f"{name} must not be negative", name)
    return default if value is None else value


def require_secure_url(value: str, name: str, insecure: bool) -> str:
    """Return the URL in `value` if it is https or on this machine. With `insecure`, accept http to any host."""
    address = read_text(url, value.strip(), name)
    parts = urlsplit(address)
    if parts.scheme == "http" and not insecure and not is_loopback(parts.hostname or ""):
        message = f"{name} must be an https:// address, because the network can change plain http to {parts.hostname}"
        raise Refused(f"{message}; to allow plain http, use --insecure-http or SVC_INSECURE_HTTP=1", name)
    return address


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _read_key(value: str | bytes, name: str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        raw = bytes.fromhex(value.strip().removeprefix("0x"))
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise Refused(f"{name} must be 32 bytes of hex", name)
    return raw
