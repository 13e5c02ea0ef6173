"""Files of operators and users: svcd.toml, the coordinator's environment, serve.toml, profiles."""

from pathlib import Path
from typing import Final

from common.daemon.process import Fatal
from common.settings.errors import SettingError
from common.settings.reader import read_from_sources, unknown_variables
from common.settings.toml import read_settings_file
from coordinatord.run.config import read_config as read_environment
from coordinatord.run.config import variable_names
from svc import profiles
from svc.serve.settings import read_settings
from svc.variables import ProfileTable, Variables
from svcd.config import ConfigFile
from tests.fuzz.target import Target, own_folder, refused

_CONFIG: Final = Path(__file__).parents[2] / "config"
_PLACE: Final = own_folder() / "file"


def check_provider(data: bytes) -> None:
    """Read a configuration, or refuse it with its file and key. Key files that it names are not read."""
    _PLACE.write_bytes(data)
    try:
        file = read_settings_file(_PLACE, ConfigFile)
    except SettingError as error:
        assert str(error).startswith(str(_PLACE))
    else:
        assert len(file.model) > 0


def check_environment(data: bytes) -> None:
    """Check for a valid configuration, or Fatal that begins with a variable's name."""
    environ = {}
    for line in data.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        if name not in {"CREDENTIALS_DIRECTORY", "ADDRESSES_FILE"} and "\0" not in line:
            environ[name] = value
    refused(lambda: read_environment(environ), Fatal)
    known = variable_names()
    assert unknown_variables(environ, known).keys() <= environ.keys() - set(known)


def check_serve(data: bytes) -> None:
    _PLACE.write_bytes(data)
    _PLACE.chmod(0o600)
    settings = refused(lambda: read_settings(_PLACE, {}))
    if settings is not None:
        settings.rule_for(None)


def check_profiles(data: bytes) -> None:
    for name, table in (refused(lambda: profiles.parse_profiles(_PLACE, data)) or {}).items():
        refused(lambda table=table, name=name: read_from_sources(Variables, ProfileTable(table, _PLACE, name)))


def _environments() -> list[bytes]:
    example = (_CONFIG / "coordinatord.env.example").read_text()
    lines = [line.removeprefix("# ").removeprefix("#") for line in example.splitlines()]
    return ["\n".join(line for line in lines if "=" in line and line[:1].isupper()).encode(), example.encode()]


def _words() -> tuple[bytes, ...]:
    return tuple(f"{name}=".encode() for name in variable_names())


_TOML: Final = (
    b"[[model]]",
    b"[model.backend]",
    b"[[model.ask]]",
    b"= [[[[[[",
    b'"""',
    b"1979-05-27",
    b"inf",
    b"0x",
    b"\n",
)

TARGETS: Final = (
    Target(
        "svcd-toml",
        check_provider,
        lambda: [
            (_CONFIG / "svcd.toml").read_bytes(),
            b"a = " + b"[" * 2000,
            b"a = " + b"9" * 5000,
            b"a." * 1500 + b"b=1",
        ],
        _TOML,
        longest=16_384,
    ),
    Target("coordinatord-env", check_environment, _environments, _words(), longest=16_384),
    Target(
        "serve-toml",
        check_serve,
        lambda: [(_CONFIG / "svc-serve.toml.example").read_bytes(), b"a = " + b"[" * 2000, b"a = " + b"9" * 5000],
        _TOML,
    ),
    Target(
        "profiles",
        check_profiles,
        lambda: [
            b'[profile.a]\nbase_url = "https://a"\n',
            b"a = " + b"[" * 2000,
            b"a = " + b"9" * 5000,
            b"[profile]\na=1",
        ],
        (*_TOML, b"[profile.a]"),
    ),
)
