"""Changes of the profiles file keep comments and other settings."""

from pathlib import Path

import pytest

from common.refusal import Refused
from svc.profile_changes import change_setting
from svc.profiles import read_profiles

WRITTEN = """# mine
[profile.default]
base_url = "https://a.example"  # the one in Frankfurt
max_amount = 250_000

# for trying things out
[profile.test]
base_url = "http://b.example"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "svc" / "config.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text(WRITTEN)
    path.chmod(0o600)
    return path


def held(path: Path) -> dict[str, dict[str, object]]:
    return read_profiles({"SVC_CONFIG": str(path)})[1]


def test_setting_changes_in_place(file: Path) -> None:
    change_setting(file, "default", "max_amount", "7")
    assert file.read_text() == WRITTEN.replace("250_000", "7")
    change_setting(file, "default", "max_amount", None)
    assert file.read_text() == WRITTEN.replace("max_amount = 250_000\n", "")


def test_setting_is_appended_to_its_profile(file: Path) -> None:
    change_setting(file, "default", "insecure_http", "true")
    change_setting(file, "third", "wallet_key_file", 'C:\\Users\\"me"\\Ångström.key')
    assert "max_amount = 250_000\ninsecure_http = true\n\n# for trying" in file.read_text()
    assert held(file) == {
        "default": {"base_url": "https://a.example", "max_amount": 250_000, "insecure_http": True},
        "test": {"base_url": "http://b.example"},
        "third": {"wallet_key_file": 'C:\\Users\\"me"\\Ångström.key'},
    }


def test_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    change_setting(path, "default", "wallet_key_file", "/k.json")
    assert held(path) == {"default": {"wallet_key_file": "/k.json"}}
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_removing_a_missing_setting_changes_nothing(file: Path) -> None:
    for profile, key in (("default", "rpc_url"), ("none", "rpc_url")):
        change_setting(file, profile, key, None)
    assert file.read_text() == WRITTEN


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
def test_value_that_no_profile_can_hold_is_refused(file: Path, profile: str, key: str, value: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        change_setting(file, profile, key, value)
    assert file.read_text() == WRITTEN


@pytest.mark.parametrize(
    "text",
    [
        'profile = {default = {base_url = "https://a.example"}}\n',
        'profile.default.base_url = "https://a.example"\n',
        '[profile]\ndefault.base_url = "https://a.example"\n',
        '[profile.other]\n[profile.default]\r\nbase_url = "https://a.example"\r\n',
    ],
)
def test_setting_is_changed_in_any_style_of_toml(file: Path, text: str) -> None:
    file.write_text(text)
    change_setting(file, "default", "base_url", "https://b.example")
    assert file.read_text() == text.replace("a.example", "b.example").replace("\r", "")
    change_setting(file, "default", "max_amount", "7")
    assert held(file)["default"] == {"base_url": "https://b.example", "max_amount": 7}


def test_file_that_cannot_be_changed_safely_is_left_to_its_owner(file: Path) -> None:
    text = 'profile = {default = {base_url = "https://a.example"}}\n'
    file.write_text(text)
    with pytest.raises(Refused, match="edit the file by hand"):
        change_setting(file, "third", "base_url", "https://b.example")
    assert file.read_text() == text
