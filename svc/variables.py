"""Variables of a client: SVC_* in the environment, and the same settings in profiles.

An empty variable counts as unset. Exceptions: an empty SVC_PIN_GATEWAY disables reading results, and with an empty
SVC_KNOWN_MARKETS, known markets are only in memory. SVC_CONFIG and SVC_PROFILE choose the profile, see svc.profiles.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import attrs

from common.refusal import Refused
from common.scalars import read_hex
from common.settings.errors import SettingError
from common.settings.kinds import Kind, boolean, integer, list_of, parsed_string, text, url
from common.settings.reader import Environment, Setting, TomlTable, setting

T = TypeVar("T")

PREFIX: Final = "SVC_"
DEFAULT_BASE_URL: Final = "http://127.0.0.1:8402"
PUBLIC_GATEWAY: Final = "https://ipfs.io"
DEFAULT_SETTLEMENT_MARGIN_S: Final = 3600
SETTINGS_ALLOWED_EMPTY: Final = frozenset({"pin_gateway", "known_markets"})


def _parse_amount(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 78:
        raise ValueError
    return int(text)


def _read_amount(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value


def _parse_address(text: str) -> str:
    try:
        read_hex(text, 20, "address")
    except Refused:
        raise ValueError from None
    return text


def _allowing_empty(kind: Kind[T], empty: T) -> Kind[T]:
    return Kind(
        kind.expected,
        lambda text: kind.from_text(text) if text else empty,
        lambda value: empty if value in ("", []) else kind.from_toml(value),
        kind.range,
    )


_AMOUNT_KIND: Final = Kind("a whole number of base units", _parse_amount, _read_amount, "base units")
_ADDRESS_KIND: Final = parsed_string("an address of 20 bytes in hex", _parse_address, "address")


@attrs.frozen(slots=True, kw_only=True)
class Variables:
    """Settings of a client from the environment or from a profile."""

    base_url: str = setting(url, "the coordinator", DEFAULT_BASE_URL)
    wallet_key: str | None = setting(text, "the wallet's private key, 32 bytes of hex", None, secret=True)
    wallet_key_file: str | None = setting(text, "a file with the key in hex, or an encrypted keystore", None)
    keystore_password_file: str | None = setting(text, "a file with the keystore's password (default: prompt)", None)
    signer_command: str | None = setting(text, "a program that signs: EIP-712 JSON in, 0x-hex out", None)
    wallet_address: str | None = setting(_ADDRESS_KIND, "the account that SVC_SIGNER_COMMAND signs for", None)
    cipher_key: str | None = setting(
        text, "the X25519 secret that opens results (default: derived from the wallet)", None, secret=True
    )
    pin_gateway: tuple[str, ...] = setting(
        _allowing_empty(list_of(url), ()),
        "gateways to read results from; empty: do not read results",
        (PUBLIC_GATEWAY,),
    )
    settlement_margin: int = setting(
        integer(0, 2**32 - 1), "seconds from the end of the window to the order's expiry", DEFAULT_SETTLEMENT_MARGIN_S
    )
    addresses_file: str | None = setting(text, "the market's address book; other contracts are rejected", None)
    known_markets: str | None = setting(
        _allowing_empty(text, ""),
        "the file of known markets (default: in the configuration folder); empty: in memory",
        None,
    )
    rpc_url: tuple[str, ...] = setting(list_of(url), "nodes of the chain to check the coordinator against", ())
    max_amount: int | None = setting(_AMOUNT_KIND, "maximum amount of an order or line (default: one token)", None)
    insecure_http: bool = setting(boolean, "allow plain http:// to other machines", False)


WALLET_SETTINGS: Final = ("wallet_key", "wallet_key_file", "signer_command")


@attrs.frozen(slots=True)
class ClientEnvironment(Environment):
    """Environment in which an empty variable counts as unset, except for the settings in SETTINGS_ALLOWED_EMPTY."""

    def find(self, setting: Setting) -> object | None:
        value = self.variables.get(self.key(setting))
        return value if value or setting.name in SETTINGS_ALLOWED_EMPTY else None


@attrs.frozen(slots=True)
class ProfileTable(TomlTable):
    """Table of a profile. Secret settings are rejected."""

    profile: str = ""

    @property
    def label(self) -> str:
        return f"profile {self.profile}"

    def read(self, setting: Setting, value: object) -> Any:
        try:
            return TomlTable.read(self, setting, value)
        except SettingError as error:
            raise error.with_prefix("profile", self.profile) from None

    def check(self, settings: Sequence[Setting]) -> None:
        try:
            TomlTable.check(self, [each for each in settings if not each.secret])
        except SettingError as error:
            raise error.with_prefix("profile", self.profile) from None


def variable_name(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def setting_name(variable: str) -> str:
    """Return the name of the setting that a variable sets.

    >>> setting_name("SVC_BASE_URL")
    'base_url'
    """
    return variable.removeprefix(PREFIX).lower()
