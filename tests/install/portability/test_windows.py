"""Behaviour of svc that differs on Windows, simulated by `other_platform` or on Windows itself."""

import sys
from pathlib import Path
from threading import Thread

import pytest

from common.address_book import AddressBook, TokenDomain
from common.refusal import Refused
from common.scalars import hex_of
from svc import known_markets, profiles, protected_files
from svc.cli.tables import format_time
from svc.core.known_market import KnownMarket
from svc.known_markets import KnownMarkets
from svc.profile_changes import change_setting
from svc.signer_command import signer_from_command

pytestmark = pytest.mark.skipif(
    protected_files.sys.platform != "win32", reason="behaviour on Windows: run python -m tests.install portability"
)
BOOK = AddressBook(31337, 0, *(bytes([n]) * 20 for n in (1, 2, 3, 4)), 6, TokenDomain("Dev Dollar", "1"))


def test_windows_settings_and_markets_are_in_appdata() -> None:
    environment = {"APPDATA": "/Users/me/AppData/Roaming", "HOME": "/not/this"}
    assert profiles.profiles_path(environment) == Path("/Users/me/AppData/Roaming/svc/config.toml")
    assert known_markets.known_markets_path(None, environment) == Path(
        "/Users/me/AppData/Roaming/svc/known_markets.json"
    )
    assert known_markets.known_markets_path(None, {"HOME": "/not/this"}) is None


def test_markets_remembered_concurrently_are_all_known(tmp_path: Path) -> None:
    known = KnownMarkets(tmp_path / "svc" / "known_markets.json")
    urls = [f"https://{number}.example" for number in range(8)]
    commands = [Thread(target=known.change, args=(url, lambda _: KnownMarket(BOOK))) for url in urls]
    for command in commands:
        command.start()
    for command in commands:
        command.join()
    assert set(known.all()) == set(urls)


def test_file_of_settings_is_made_changed_and_read(tmp_path: Path) -> None:
    path = tmp_path / "svc" / "config.toml"
    change_setting(path, "default", "wallet_key_file", "C:\\Users\\me\\wallet.key")
    found = profiles.read_variables({"APPDATA": str(tmp_path)})
    assert found.wallet_key_file == "C:\\Users\\me\\wallet.key"


def test_windows_refuses_links_folders_and_long_paths(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("#" * 70_000)
    with pytest.raises(Refused, match="at most 64 KiB"):
        profiles.read_variables({"SVC_CONFIG": str(path)})
    path.unlink()
    path.mkdir()
    with pytest.raises(Refused, match="must be a file"):
        profiles.read_variables({"SVC_CONFIG": str(path)})


def test_program_that_signs_keeps_its_backslashes() -> None:
    command = '"C:\\Program Files\\Ledger\\sign.exe" --account 0'
    signer = signer_from_command(command, hex_of(bytes(20)))
    sign = signer.by_typed_data  # type: ignore[attr-defined] # it is a RemoteSigner
    assert sign.__self__.command == ("C:\\Program Files\\Ledger\\sign.exe", "--account", "0")


@pytest.mark.parametrize(
    ("at", "told"), [(1_800_000_000, "2027-01-15 08:00:00Z"), (99_999_999_999, "5138-11-16 09:46:39Z")]
)
def test_time_beyond_the_systems_calendar_is_reported(at: int, told: str) -> None:
    assert format_time(at) == told
    assert format_time(10**18) == str(10**18)


def test_the_tests_themselves_run_where_they_are() -> None:
    assert sys.platform != "win32" or protected_files.sys is sys
