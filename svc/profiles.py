"""Profiles: settings by name in one file, for what is neither given explicitly nor in the environment.

    <folder>/svc/config.toml             of the user's configuration folder, or the file that SVC_CONFIG names

    [profile.default]
    base_url = "https://coordinator.example"
    wallet_key_file = "/home/me/.config/svc/wallet.key"
    max_amount = 250_000

A key is the name of a variable without its `SVC_`, in small letters; SVC_PROFILE chooses another profile than
`default`. The file says who is paid and how much at most, so it must be the user's own and writable by nobody else. It
holds no keys: `wallet_key_file` or `keystore` names the file of one.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from common.refusal import Refused
from svc.own_files import OwnFile, configuration_folder
from svc.wallets import WAYS

FILE_VARIABLE: Final = "SVC_CONFIG"
NAME_VARIABLE: Final = "SVC_PROFILE"
DEFAULT: Final = "default"
KEYS: Final = (
    *("base_url", "wallet_key_file", "keystore", "keystore_password_file"),
    *("signer_command", "wallet_address", "signer_deterministic"),
    *("pin_gateway", "settlement_margin", "addresses_file", "known_markets", "rpc_url"),
    *("max_amount", "max_batch_amount", "insecure_http"),
)
_LONGEST: Final = 1 << 16


def with_profile(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with the chosen profile beneath it: a variable that is set, even to nothing, wins.

    Raises Refused for a file that must not be believed or cannot be read as profiles, and for a profile that is chosen
    and not there; a missing file holds no profiles.
    """
    path, profiles = profiles_of(environment)
    chosen = environment.get(NAME_VARIABLE)
    name = chosen or DEFAULT
    if name not in profiles:
        if chosen:
            there = ", ".join(sorted(profiles)) or "none"
            raise Refused(f"there is no profile {chosen!r} in {path} (there: {there})", NAME_VARIABLE)
        return environment
    values = as_variables(profiles[name], f"{path}: [profile.{name}]")
    # Two ways to name a wallet would leave it to chance which account pays.
    if any(environment.get(way) for way in WAYS):
        values = {variable: value for variable, value in values.items() if variable not in WAYS}
    return {**values, **environment}


def profiles_of(environment: Mapping[str, str]) -> tuple[Path | None, dict[str, dict[str, Any]]]:
    """The file's place, and its profiles by name. Raises Refused."""
    path = place_of(environment)
    return path, {} if path is None else _read(path, named=FILE_VARIABLE in environment)


def place_of(environment: Mapping[str, str]) -> Path | None:
    """The place of the file; None where SVC_CONFIG is set to nothing, or where there is no configuration folder."""
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
        raise Refused(f"{FILE_VARIABLE} names {path}, and there is no such file", FILE_VARIABLE)
    return {} if raw is None else parsed(path, raw)


def own_file(path: Path) -> OwnFile:
    return OwnFile(path, FILE_VARIABLE, _LONGEST)


def parsed(path: Path, raw: bytes) -> dict[str, dict[str, Any]]:
    try:
        held = tomllib.loads(raw.decode("utf-8"))
    except ValueError as error:  # no TOML, no UTF-8, or an integer of thousands of digits
        raise Refused(f"{path} is not TOML: {error}", FILE_VARIABLE) from None
    except RecursionError:
        raise Refused(f"{path} must not nest its tables so deep", FILE_VARIABLE) from None
    profiles = held.pop("profile", {})
    if held or not isinstance(profiles, dict) or not all(isinstance(table, dict) for table in profiles.values()):
        raise Refused(f"{path} must hold tables named [profile.NAME] and nothing else", FILE_VARIABLE)
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
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    raise Refused(f"{where} must be a text, a whole number, true or false, or a list of texts", FILE_VARIABLE)
