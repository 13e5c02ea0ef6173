"""Tests of svc to skip on another platform, by a part of their names, with reasons."""

from typing import Final

_MODES: Final = "Windows has no modes: the folder of application data is the user's own by its access list"
_PLACES: Final = "the place of settings is APPDATA's on Windows: tests/install/portability/test_windows.py"
_LINKS: Final = "opening without following links, and pipes in files' places, are POSIX's"
_QUOTED: Final = "the command is quoted for POSIX shells; tests/install/portability/test_windows.py has one of Windows"

ELSEWHERE: Final[dict[str, dict[str, str]]] = {
    "darwin": {},
    "win32": {
        "test_known_markets.py::test_market_is_remembered_privately_for_later_processes": _MODES,
        "test_known_markets.py::test_place_is_the_users_configuration_unless_named": _PLACES,
        "test_known_markets.py::test_link_in_the_folders_place_is_refused": _LINKS,
        "test_known_markets.py::test_link_in_the_locks_place_makes_no_file_elsewhere": _LINKS,
        "test_known_markets.py::test_what_others_can_write_is_not_believed": _MODES,
        "test_profiles.py::test_file_is_made_for_its_owner_alone": _MODES,
        "test_profiles.py::test_file_that_others_may_write_is_refused": _MODES,
        "test_profiles.py::test_file_is_looked_for_in_the_configuration_folder": _PLACES,
        "test_settings.py::test_settings_that_others_could_have_written_are_refused": _MODES,
        "test_settings.py::test_key_is_made_once_and_is_the_users_alone": _MODES,
        "test_signers.py::test_program_": _QUOTED,
        "test_market_verifier.py::test_market_that_cannot_be_remembered_is_told_each_time": _LINKS,
        "test_wallets.py::test_file_that_others_can_read_is_refused_with_what_to_do": _MODES,
        "test_wallets.py::test_password_file_that_others_can_read_is_refused": _MODES,
    },
}
