import os
from pathlib import Path
from threading import Barrier, Thread

import pytest

from common.address_book import AddressBook, TokenDomain
from common.refusal import Refused
from svc.core.known_market import KnownMarket
from svc.known_markets import KnownMarkets
from svc.settings import Settings

BOOK = AddressBook(31337, 0, *(bytes([n]) * 20 for n in (1, 2, 3, 4)), 6, TokenDomain("Dev Dollar", "1"))
URL = "https://market.example"


@pytest.fixture
def known(tmp_path: Path) -> KnownMarkets:
    return KnownMarkets(tmp_path / "svc" / "known_markets.json")


def _remember(known: KnownMarkets, url: str = URL) -> None:
    known.change(url, lambda _: KnownMarket(BOOK))


def _path(known: KnownMarkets) -> Path:
    assert known.path is not None
    return known.path


def test_market_is_remembered_privately_for_later_processes(known: KnownMarkets) -> None:
    assert known.get(URL) is None
    _remember(known)
    path = _path(known)
    assert KnownMarkets(path).get(URL) == KnownMarket(BOOK)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    known.change(URL, lambda _: None)
    assert KnownMarkets(path).all() == {}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"HOME": "/home/a"}, "/home/a/.config/svc/known_markets.json"),
        ({"HOME": "/home/a", "XDG_CONFIG_HOME": "/etc/a"}, "/etc/a/svc/known_markets.json"),
        ({"HOME": "/home/a", "XDG_CONFIG_HOME": "relative"}, "/home/a/.config/svc/known_markets.json"),
        ({"HOME": "/home/a", "SVC_KNOWN_MARKETS": "/x/y.json"}, "/x/y.json"),
        ({"HOME": "/home/a", "SVC_KNOWN_MARKETS": ""}, None),
        ({}, None),
    ],
)
def test_place_is_the_users_configuration_unless_named(environment: dict[str, str], place: str | None) -> None:
    found = Settings.resolve(environment=environment).known_markets
    assert found == (None if place is None else Path(place))


def test_without_a_place_markets_are_known_to_this_process_alone() -> None:
    known = KnownMarkets()
    _remember(known)
    assert (known.get(URL), KnownMarkets().get(URL)) == (KnownMarket(BOOK), None)


def test_link_in_place_of_the_file_is_not_followed(known: KnownMarkets, tmp_path: Path) -> None:
    _remember(known)
    path, victim = _path(known), tmp_path / "victim"
    path.rename(victim)
    before = victim.read_bytes()
    path.symlink_to(victim)
    with pytest.raises(Refused, match="not a link"):
        known.get(URL)
    with pytest.raises(Refused, match="not a link"):
        _remember(known, "https://other.example")
    assert victim.read_bytes() == before


def test_link_in_the_folders_place_is_refused(known: KnownMarkets, tmp_path: Path) -> None:
    _remember(known)
    folder = _path(known).parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="not a link"):
        known.get(URL)


def test_link_in_the_locks_place_makes_no_file_elsewhere(known: KnownMarkets, tmp_path: Path) -> None:
    _path(known).parent.mkdir(mode=0o700)
    _path(known).with_suffix(".lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic link"):
        _remember(known)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_others_can_write_is_not_believed(known: KnownMarkets, what: str) -> None:
    _remember(known)
    path = _path(known) if what == "file" else _path(known).parent
    path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(Refused, match=f"chmod go-w {path}"):
        known.get(URL)


def test_pipe_in_the_files_place_is_refused_and_not_waited_for(known: KnownMarkets) -> None:
    _path(known).parent.mkdir(mode=0o700)
    os.mkfifo(_path(known), 0o600)
    with pytest.raises(Refused, match="must be a file"):
        known.get(URL)


def test_damaged_file_is_named_and_left_as_it_is(known: KnownMarkets) -> None:
    _remember(known)
    _path(known).write_text("{")
    with pytest.raises(Refused, match=r"known_markets\.json.*rename the file"):
        _remember(known)
    assert _path(known).read_text() == "{"


def test_concurrent_commands_keep_all_markets(known: KnownMarkets) -> None:
    barrier, urls = Barrier(8), [f"https://market{n}.example" for n in range(8)]

    def remember(url: str) -> None:
        barrier.wait()
        _remember(KnownMarkets(known.path), url)

    threads = [Thread(target=remember, args=[url]) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(known.all()) == urls
    assert sorted(each.name for each in _path(known).parent.iterdir()) == ["known_markets.json", "known_markets.lock"]


def test_nothing_is_left_of_a_write_that_fails(known: KnownMarkets, monkeypatch: pytest.MonkeyPatch) -> None:
    _remember(known)
    before = _path(known).read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        _remember(known, "https://other.example")
    assert _path(known).read_bytes() == before
    assert sorted(each.name for each in _path(known).parent.iterdir()) == ["known_markets.json", "known_markets.lock"]
