"""Profiles: named sets of settings in one file. Arguments and the environment override the settings of a profile.

    <folder>/svc/config.toml             in the user's configuration folder, or the file in SVC_CONFIG

    [profile.default]
    base_url = "https://coordinator.example"
    wallet_key_file = "/home/me/.config/svc/wallet.key"
    max_amount = 250_000

A key is the name of a variable without `SVC_`, in lower case. SVC_PROFILE chooses a profile other than
`default`. The file decides who is paid and how much, so only the user may own and write it. The file must contain no
private keys: set `wallet_key_file` to the file with the key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from common.refusal import Refused
from common.settings.errors import SettingError
from common.settings.reader import read_from_sources
from common.settings.toml import parse_toml
from svc.protected_files import ProtectedFile, configuration_folder
from svc.variables import PREFIX, WALLET_SETTINGS, ClientEnvironment, ProfileTable, Variables, variable_name

CONFIG_VARIABLE: Final = "SVC_CONFIG"
PROFILE_VARIABLE: Final = "SVC_PROFILE"
DEFAULT_PROFILE: Final = "default"
_MAX_FILE_BYTES: Final = 1 << 16


def read_variables(environment: Mapping[str, str]) -> Variables:
    """Read the environment, and the chosen profile for variables that are not set. Raises Refused."""
    return read_from_sources(Variables, *select_setting_sources(environment))


def select_setting_sources(environment: Mapping[str, str]) -> tuple[ClientEnvironment, ProfileTable]:
    """Return the environment, and the chosen profile without the settings that the environment overrides.

    Raises Refused for an unsafe or unreadable file, and for a chosen profile that does not exist.
    """
    path, profiles = read_profiles(environment)
    chosen = environment.get(PROFILE_VARIABLE)
    name = chosen or DEFAULT_PROFILE
    if chosen and name not in profiles:
        available = ", ".join(sorted(profiles)) or "none"
        raise Refused(f"no profile {chosen!r} in {path} (available: {available})", PROFILE_VARIABLE)
    values = profiles.get(name, {})
    overridden = find_overrides(environment, values)
    remaining = {key: value for key, value in values.items() if key not in overridden}
    return ClientEnvironment(environment, PREFIX), ProfileTable(remaining, path, name)


def find_overrides(environment: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the settings in `values` that the environment overrides, each with the overriding variable.

    A variable overrides its setting even if it is empty. A wallet in the environment overrides every wallet setting, so
    that it is clear which account pays.
    """
    found = {key: variable_name(key) for key in values if variable_name(key) in environment}
    wallets = [variable_name(name) for name in WALLET_SETTINGS if environment.get(variable_name(name))]
    return found | ({name: wallets[0] for name in WALLET_SETTINGS if name in values} if wallets else {})


def read_profiles(environment: Mapping[str, str]) -> tuple[Path | None, dict[str, dict[str, Any]]]:
    """Return the path of the profiles file, and the profiles by name. Raises Refused."""
    path = profiles_path(environment)
    return path, {} if path is None else _read_profiles(path, required=CONFIG_VARIABLE in environment)


def profiles_path(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the profiles file, or None if SVC_CONFIG is empty or there is no configuration folder."""
    configured = environment.get(CONFIG_VARIABLE)
    if configured is not None:
        return Path(configured) if configured else None
    folder = configuration_folder(environment)
    return folder and folder / "config.toml"


def _read_profiles(path: Path, *, required: bool) -> dict[str, dict[str, Any]]:
    try:
        raw = profiles_file(path).read()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}", CONFIG_VARIABLE) from None
    if raw is None and required:
        raise Refused(f"{CONFIG_VARIABLE}: file not found: {path}", CONFIG_VARIABLE)
    return {} if raw is None else parse_profiles(path, raw)


def profiles_file(path: Path) -> ProtectedFile:
    return ProtectedFile(path, CONFIG_VARIABLE, _MAX_FILE_BYTES)


def parse_profiles(path: Path, raw: bytes) -> dict[str, dict[str, Any]]:
    document = parse_toml(raw, path)
    profiles = document.pop("profile", {})
    if document or not isinstance(profiles, dict) or not all(isinstance(table, dict) for table in profiles.values()):
        raise SettingError.at((), "must contain only tables named [profile.NAME]", path)
    return profiles
