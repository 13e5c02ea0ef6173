"""Profiles: which value takes precedence, and which files are rejected. Changes of the file keep comments and other
settings."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from common.refusal import Refused
from common.settings.reader import settings_of
from svc.profile_changes import change_setting
from svc.profiles import find_overrides, profiles_path, read_profiles, read_variables
from svc.settings import Settings
from svc.variables import Variables
from svc.wallets import read_signer

TWO = """
[profile.default]
base_url = "https://a.example"
max_amount = 250_000
pin_gateway = ["https://g.example", "https://h.example"]

[profile.test]
base_url = "http://b.example"
insecure_http = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(TWO)
    path.chmod(0o600)
    return path


def test_profile_ranks_between_environment_and_default(file: Path) -> None:
    settings = Settings.resolve(environment={"SVC_CONFIG": str(file)})
    assert (settings.base_url, settings.max_amount) == ("https://a.example", 250_000)
    assert settings.gateways == ("https://g.example", "https://h.example")
    assert settings.settlement_margin == 3600
    set_ = {"SVC_CONFIG": str(file), "SVC_MAX_AMOUNT": "7", "SVC_PIN_GATEWAY": ""}
    settings = Settings.resolve(environment=set_)
    assert (settings.max_amount, settings.gateways) == (7, ())
    assert Settings.resolve(max_amount=9, environment=set_).max_amount == 9


def test_another_profile_is_chosen_by_name_and_must_be_there(file: Path) -> None:
    known = {"SVC_CONFIG": str(file), "SVC_PROFILE": "test"}
    assert Settings.resolve(environment=known).base_url == "http://b.example"
    with pytest.raises(Refused, match=r"no profile 'tset' in .*config\.toml \(available: default, test\)") as caught:
        read_variables(known | {"SVC_PROFILE": "tset"})
    assert caught.value.param == "SVC_PROFILE"
    assert Settings.resolve(profile="test", environment={"SVC_CONFIG": str(file)}).base_url == "http://b.example"


def test_wallet_is_the_profiles_where_the_environment_has_none(tmp_path: Path, file: Path) -> None:
    key = tmp_path / "wallet.key"
    key.write_text("11" * 32)
    key.chmod(0o600)
    file.write_text(f'[profile.default]\nwallet_key_file = "{key}"\n')
    known = {"SVC_CONFIG": str(file)}
    ours = read_signer(read_variables(known))
    other = read_signer(read_variables(known | {"SVC_WALLET_KEY": "22" * 32}))
    assert ours is not None
    assert other is not None
    assert ours.address != other.address


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profile.default]\nmax_amout = 1\n", r"profile.default.max_amout is not a setting \(did you mean max_amount"),
        ("[profile.default]\nwallet_key = '11'\n", "profile.default.wallet_key is not a setting"),
        ("[profile.default]\nmax_amount = 1.5\n", "profile.default.max_amount must be a whole number of base units"),
        ("[profile.default\n", "is not valid TOML"),
        ("[profile.default]\nmax_amount = " + "9" * 5_000, "is not valid TOML"),
        ("a = " + "[" * 60_000, "nested too deeply"),
        ("base_url = 'https://a.example'\n", "must contain only tables named"),
        ("profile = 1\n", "must contain only tables named"),
        ("#" * 70_000, "at most 64 KiB"),
    ],
)
def test_file_that_is_no_profiles_is_refused(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(Refused, match=said) as caught:
        read_variables({"SVC_CONFIG": str(file)})
    assert str(file) in caught.value.message


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")
def test_file_that_others_may_write_is_refused(file: Path) -> None:
    file.chmod(0o620)
    with pytest.raises(Refused, match="writable by you alone"):
        read_variables({"SVC_CONFIG": str(file)})


def test_file_is_looked_for_in_the_configuration_folder(tmp_path: Path) -> None:
    assert profiles_path({"HOME": "/home/me"}) == Path("/home/me/.config/svc/config.toml")
    assert profiles_path({"HOME": "/home/me", "XDG_CONFIG_HOME": "/x"}) == Path("/x/svc/config.toml")
    assert profiles_path({"SVC_CONFIG": ""}) is None
    assert read_variables({"HOME": str(tmp_path)}) == Variables()
    with pytest.raises(Refused, match="file not found"):
        read_variables({"SVC_CONFIG": str(tmp_path / "none.toml")})


def test_there_are_at_most_sixteen_variables() -> None:
    assert len(settings_of(Variables)) + 2 <= 16  # plus SVC_CONFIG and SVC_PROFILE


def test_empty_variable_hides_the_setting_of_the_profile(file: Path) -> None:
    environment = {"SVC_CONFIG": str(file), "SVC_MAX_AMOUNT": ""}
    assert read_variables(environment).max_amount is None
    assert find_overrides(environment, {"max_amount": 1, "base_url": ""}) == {"max_amount": "SVC_MAX_AMOUNT"}


@pytest.mark.skipif(os.name == "nt", reason="links and pipes are POSIX's")
@pytest.mark.parametrize("make", [lambda place, file: place.symlink_to(file), lambda place, _: os.mkfifo(place)])
def test_link_and_pipe_in_its_place_are_refused_at_once(
    tmp_path: Path, file: Path, make: Callable[[Path, Path], None]
) -> None:
    place = tmp_path / "other.toml"
    make(place, file)
    with pytest.raises(Refused, match="must be a file"):
        read_variables({"SVC_CONFIG": str(place)})


WRITTEN = """# mine
[profile.default]
base_url = "https://a.example"  # the one in Frankfurt
max_amount = 250_000

# for trying things out
[profile.test]
base_url = "http://b.example"
"""


@pytest.fixture
def profiles_file(tmp_path: Path) -> Path:
    path = tmp_path / "svc" / "config.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text(WRITTEN)
    path.chmod(0o600)
    return path


def held(path: Path) -> dict[str, dict[str, object]]:
    return read_profiles({"SVC_CONFIG": str(path)})[1]


def test_setting_changes_in_place(profiles_file: Path) -> None:
    change_setting(profiles_file, "default", "max_amount", "7")
    assert profiles_file.read_text() == WRITTEN.replace("250_000", "7")
    change_setting(profiles_file, "default", "max_amount", None)
    assert profiles_file.read_text() == WRITTEN.replace("max_amount = 250_000\n", "")


def test_setting_is_appended_to_its_profile(profiles_file: Path) -> None:
    change_setting(profiles_file, "default", "insecure_http", "true")
    change_setting(profiles_file, "third", "wallet_key_file", 'C:\\Users\\"me"\\Ångström.key')
    assert "max_amount = 250_000\ninsecure_http = true\n\n# for trying" in profiles_file.read_text()
    assert held(profiles_file) == {
        "default": {"base_url": "https://a.example", "max_amount": 250_000, "insecure_http": True},
        "test": {"base_url": "http://b.example"},
        "third": {"wallet_key_file": 'C:\\Users\\"me"\\Ångström.key'},
    }


def test_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    change_setting(path, "default", "wallet_key_file", "/k.json")
    assert held(path) == {"default": {"wallet_key_file": "/k.json"}}
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_removing_a_missing_setting_changes_nothing(profiles_file: Path) -> None:
    for profile, key in (("default", "rpc_url"), ("none", "rpc_url")):
        change_setting(profiles_file, profile, key, None)
    assert profiles_file.read_text() == WRITTEN


@pytest.mark.parametrize(
    ("profile", "key", "value", "said"),
    [
        ("default", "wallet_key", "11", "wallet_key is not a setting"),
        ("default", "max_amount", "1.5", "max_amount"),
        ("default", "insecure_http", "maybe", "must be 1, 0, true or false"),
        ("default", "base_url", "a\nb", "line breaks"),
        ("de fault", "base_url", "https://a", "letters, digits"),
    ],
)
def test_value_that_no_profile_can_hold_is_refused(
    profiles_file: Path, profile: str, key: str, value: str, said: str
) -> None:
    with pytest.raises(Refused, match=said):
        change_setting(profiles_file, profile, key, value)
    assert profiles_file.read_text() == WRITTEN


@pytest.mark.parametrize(
    "text",
    [
        'profile = {default = {base_url = "https://a.example"}}\n',
        'profile.default.base_url = "https://a.example"\n',
        '[profile]\ndefault.base_url = "https://a.example"\n',
        '[profile.other]\n[profile.default]\r\nbase_url = "https://a.example"\r\n',
    ],
)
def test_setting_is_changed_in_any_style_of_toml(profiles_file: Path, text: str) -> None:
    profiles_file.write_text(text)
    change_setting(profiles_file, "default", "base_url", "https://b.example")
    assert profiles_file.read_text() == text.replace("a.example", "b.example").replace("\r", "")
    change_setting(profiles_file, "default", "max_amount", "7")
    assert held(profiles_file)["default"] == {"base_url": "https://b.example", "max_amount": 7}


def test_file_that_cannot_be_changed_safely_is_left_to_its_owner(profiles_file: Path) -> None:
    text = 'profile = {default = {base_url = "https://a.example"}}\n'
    profiles_file.write_text(text)
    with pytest.raises(Refused, match="edit the file by hand"):
        change_setting(profiles_file, "third", "base_url", "https://b.example")
    assert profiles_file.read_text() == text
