"""Settings of a client: given explicitly, by environment variables, or by a profile.

SVC_BASE_URL            the coordinator
SVC_WALLET_KEY, SVC_WALLET_KEY_FILE, SVC_KEYSTORE, SVC_SIGNER_COMMAND
                        the wallet, one way or another: see svc.wallets
SVC_CIPHER_KEY          an X25519 secret that results are sealed to: 32 bytes of hex
SVC_PIN_GATEWAY         gateways that results are read from, comma-separated; empty disables reads
SVC_SETTLEMENT_MARGIN   seconds that an order outlives its window (default 3600)
SVC_ADDRESSES_FILE      the market's address book: a coordinator that tells another deployment is refused
SVC_KNOWN_MARKETS       the file of known markets, see svc.known_markets; empty: known to this process alone
SVC_RPC_URL             nodes of the chain that what is told is held against, comma-separated; they must agree
SVC_MAX_AMOUNT          the most that one order, or line of a batch, may come to, in base units (default: one token)
SVC_MAX_BATCH_AMOUNT    the most that a batch may come to in all, in base units (default: ten tokens)
SVC_INSECURE_HTTP       1: take http:// to other machines, where whoever is on the way reads and changes everything

SVC_CONFIG, SVC_PROFILE the file of profiles, and the one to use, see svc.profiles

An explicit value wins over the environment, that over the profile, and that over the default.
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
from svc.wallets import signer_of

DEFAULT_BASE_URL: Final = "http://127.0.0.1:8402"
PUBLIC_GATEWAY: Final = "https://ipfs.io"
DEFAULT_MARGIN: Final = 3600
_LONGEST_BOOK: Final = 1 << 16
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"", "0", "false", "no", "off"})


@attrs.frozen(slots=True)
class Settings:
    """`gateways` is empty when reads are disabled. `cipher_key_first`: it was given on purpose, so that it is used
    even where there is a wallet to derive one from. `addresses` is the address book that pins the deployment. Amounts
    are None where nobody set a ceiling."""

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
        """Explicit values win; the rest comes from `environment` (the process's own unless given) and the profile.

        `without_wallet`: none is looked for, so that no password is asked for what needs no signature.

        Raises Refused, naming the variable or argument at fault and never showing a key.

        >>> settings = Settings.resolve(gateways="https://a.example/, https://b.example", environment={})
        >>> settings.base_url, settings.gateways, settings.settlement_margin
        ('http://127.0.0.1:8402', ('https://a.example', 'https://b.example'), 3600)
        """
        known = os.environ if environment is None else environment
        known = with_profile({**known, NAME_VARIABLE: profile} if profile else known)
        cipher: str | bytes | SecretKey | None = cipher_key or known.get("SVC_CIPHER_KEY") or None
        margin = known.get("SVC_SETTLEMENT_MARGIN")
        if settlement_margin is None:
            settlement_margin = read_decimal(margin, 32, "SVC_SETTLEMENT_MARGIN") if margin else DEFAULT_MARGIN
        elif settlement_margin < 0:
            raise Refused("settlement_margin must not be negative", "settlement_margin")
        insecure = _flag(known, "SVC_INSECURE_HTTP") if insecure_http is None else insecure_http
        return cls(
            base_url=secure_url(base_url or known.get("SVC_BASE_URL") or DEFAULT_BASE_URL, "SVC_BASE_URL", insecure),
            gateways=_gateways(gateways if gateways is not None else known.get("SVC_PIN_GATEWAY", PUBLIC_GATEWAY)),
            signer=_signer(wallet_key, without_wallet, known),
            cipher_key=(
                cipher if cipher is None or isinstance(cipher, SecretKey) else SecretKey(_key(cipher, "SVC_CIPHER_KEY"))
            ),
            cipher_key_first=bool(cipher_key),
            settlement_margin=settlement_margin,
            addresses=_book(addresses or known.get("SVC_ADDRESSES_FILE") or None),
            rpc_urls=node_urls(rpc_url, insecure, known),
            max_amount=_amount(max_amount, known, "SVC_MAX_AMOUNT"),
            max_batch_amount=_amount(max_batch_amount, known, "SVC_MAX_BATCH_AMOUNT"),
            environment=known,
        )


def _signer(given: str | bytes | Wallet | None, without_wallet: bool, known: Mapping[str, str]) -> Signer | None:
    if without_wallet:
        return None
    if not given:
        return signer_of(known)
    return LocalSigner(given if isinstance(given, Wallet) else Wallet(_key(given, "SVC_WALLET_KEY")))


def _gateways(given: str | Sequence[str]) -> tuple[str, ...]:
    each = given.split(",") if isinstance(given, str) else given
    return tuple(_url(gateway, "SVC_PIN_GATEWAY") for gateway in each if gateway.strip())


def node_urls(
    given: str | Sequence[str] | None, insecure: bool | None = None, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The nodes of the chain that are named, by SVC_RPC_URL where none are given. Raises Refused."""
    known = with_profile(os.environ) if environment is None else environment
    named = known.get("SVC_RPC_URL", "") if given is None else given
    each = named.split(",") if isinstance(named, str) else named
    allowed = _flag(known, "SVC_INSECURE_HTTP") if insecure is None else insecure
    return tuple(dict.fromkeys(secure_url(node, "SVC_RPC_URL", allowed) for node in each if node.strip()))


def _book(given: AddressBook | Path | str | None) -> AddressBook | None:
    if given is None or isinstance(given, AddressBook):
        return given
    try:
        with Path(given).open("rb") as file:
            raw = file.read(_LONGEST_BOOK)
    except OSError as error:
        message = (
            f"the address book {given} cannot be read: {error.strerror}; --addresses or SVC_ADDRESSES_FILE names it"
        )
        raise Refused(message, "SVC_ADDRESSES_FILE") from None
    try:
        return AddressBook.parse(raw)
    except Refused as refusal:
        raise Refused(f"the address book {given}: {refusal.message}", "SVC_ADDRESSES_FILE") from None


def _amount(given: int | None, known: Mapping[str, str], name: str) -> int | None:
    if given is None:
        text = known.get(name)
        return read_decimal(text, 256, name) if text else None
    if given < 0:
        raise Refused(f"{name.removeprefix('SVC_').lower()} must not be negative", name)
    return given


def _flag(known: Mapping[str, str], name: str) -> bool:
    text = known.get(name, "").strip().lower()
    if text not in _YES | _NO:
        raise Refused(f"{name} must be 1 or 0", name)
    return text in _YES


def secure_url(given: str, name: str, insecure: bool) -> str:
    """An address whose answers are those of its host: https, or plain http to this machine alone."""
    url = _url(given, name)
    parts = urlsplit(url)
    if parts.scheme == "http" and not insecure and not _is_loopback(parts.hostname or ""):
        message = f"{name} must be an https:// address: plain http to {parts.hostname} is changed on the way at will"
        raise Refused(f"{message}; --insecure-http or SVC_INSECURE_HTTP=1 takes it all the same", name)
    return url


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


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
