"""Profiles: named sets of settings in one file, used for settings that are neither arguments nor in the environment.

    <folder>/svc/config.toml             in the user's configuration folder, or the file in SVC_CONFIG

    [profile.default]
    base_url = "https://coordinator.example"
    wallet_key_file = "/home/me/.config/svc/wallet.key"
    max_amount = 250_000

A key is the name of a variable without `SVC_`, in lower case. SVC_PROFILE chooses another profile than `default`. The
file decides who is paid and how much, so it must belong to the user, who alone may write it. It holds no keys: set
`wallet_key_file` or `keystore` to a file with one.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from common.refusal import Refused
from svc.own_files import OwnFile, configuration_folder
from svc.wallets import WALLET_VARIABLES

FILE_VARIABLE: Final = "SVC_CONFIG"
NAME_VARIABLE: Final = "SVC_PROFILE"
DEFAULT_PROFILE: Final = "default"
KEYS: Final = (
    *("base_url", "wallet_key_file", "keystore", "keystore_password_file"),
    *("signer_command", "wallet_address", "signer_deterministic"),
    *("pin_gateway", "settlement_margin", "addresses_file", "known_markets", "rpc_url"),
    *("max_amount", "max_batch_amount", "insecure_http"),
)
_MAX_FILE_BYTES: Final = 1 << 16


def with_profile(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment merged with the chosen profile. A variable overrides the profile, even if empty.

    Raises Refused for an unsafe or unreadable file and for a chosen profile that does not exist. A missing file has no
    profiles.
    """
    path, profiles = profiles_of(environment)
    chosen = environment.get(NAME_VARIABLE)
    name = chosen or DEFAULT_PROFILE
    if name not in profiles:
        if chosen:
            available = ", ".join(sorted(profiles)) or "none"
            raise Refused(f"no profile {chosen!r} in {path} (available: {available})", NAME_VARIABLE)
        return environment
    values = as_variables(profiles[name], f"{path}: [profile.{name}]")
    # A wallet in the environment replaces the profile's, so that it is clear which account pays.
    if any(environment.get(way) for way in WALLET_VARIABLES):
        values = {variable: value for variable, value in values.items() if variable not in WALLET_VARIABLES}
    return {**values, **environment}


def profiles_of(environment: Mapping[str, str]) -> tuple[Path | None, dict[str, dict[str, Any]]]:
    """Return the path of the file, and its profiles by name. Raises Refused."""
    path = profiles_path(environment)
    return path, {} if path is None else _read(path, named=FILE_VARIABLE in environment)


def profiles_path(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the file, or None if SVC_CONFIG is empty or there is no configuration folder."""
    named = environment.get(FILE_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    folder = configuration_folder(environment)
    return folder and folder / "config.toml"


def _read(path: Path, *, named: bool) -> dict[str, dict[str, Any]]:
    try:
        raw = own_file(path).read()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", FILE_VARIABLE) from None
    if raw is None and named:
        raise Refused(f"{FILE_VARIABLE}: file not found: {path}", FILE_VARIABLE)
    return {} if raw is None else parse_profiles(path, raw)


def own_file(path: Path) -> OwnFile:
    return OwnFile(path, FILE_VARIABLE, _MAX_FILE_BYTES)


def parse_profiles(path: Path, raw: bytes) -> dict[str, dict[str, Any]]:
    try:
        document = tomllib.loads(raw.decode("utf-8"))
    except ValueError as error:  # invalid TOML or UTF-8, or an integer with thousands of digits
        raise Refused(f"{path} is not TOML: {error}", FILE_VARIABLE) from None
    except RecursionError:
        raise Refused(f"{path}: tables are nested too deeply", FILE_VARIABLE) from None
    profiles = document.pop("profile", {})
    if document or not isinstance(profiles, dict) or not all(isinstance(table, dict) for table in profiles.values()):
        raise Refused(f"{path} must hold only tables named [profile.NAME]", FILE_VARIABLE)
    return profiles


def as_variables(table: Mapping[str, Any], where: str) -> dict[str, str]:
    values = {}
    for key, value in table.items():
        if key not in KEYS:
            raise Refused(f"{where} has an unknown key {key!r} (known: {', '.join(KEYS)})", FILE_VARIABLE)
        values[f"SVC_{key.upper()}"] = _as_text(value, f"{where} {key}")
    return values


def _as_text(value: object, where: str) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise Refused(f"{where} must be a text, a whole number, true or false, or a list of texts", FILE_VARIABLE)
