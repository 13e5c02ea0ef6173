from pathlib import Path

import pytest
import trio

from common.box import SecretKey
from common.refusal import Refused
from common.secp256k1 import Wallet
from svcd.base.clock import Clock
from svcd.base.json_path import JsonPath
from svcd.base.keys import BOX_KEY_FILE, WALLET_FILE, create_identity
from svcd.base.timings import Timings


def test_created_keys_match_the_identity_and_are_private(tmp_path: Path) -> None:
    identity = create_identity(tmp_path / "keys")
    wallet, box = (
        bytes.fromhex((tmp_path / "keys" / name).read_text().strip().removeprefix("0x"))
        for name in (WALLET_FILE, BOX_KEY_FILE)
    )
    assert Wallet(wallet).address == identity.operator
    assert SecretKey(box).public == identity.box_key
    assert {(tmp_path / "keys" / name).stat().st_mode & 0o777 for name in (WALLET_FILE, BOX_KEY_FILE)} == {0o600}


@pytest.mark.parametrize("name", [WALLET_FILE, BOX_KEY_FILE])
def test_one_existing_key_file_keeps_both_from_being_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(FileExistsError):
        create_identity(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


VALUE = {"data": {"items": [{"url": "a"}, {"url": "b"}, {}], "odd name": 1}, "none": None}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", [VALUE]),
        ("data.items[0].url", ["a"]),
        ("$.data.items[-2].url", ["b"]),
        ("data.items[*].url", ["a", "b"]),
        ('data["odd name"]', [1]),
        ("none", [None]),
        ("data.items[3]", []),
        ("data.items.url", []),
        ("data[0]", []),
        ("missing.deeper", []),
    ],
)
def test_a_path_finds_what_is_there_and_nothing_else(path: str, found: list[object]) -> None:
    assert JsonPath.parse(path).select(VALUE) == found


def test_a_list_at_the_root_is_reached_by_a_bracket() -> None:
    assert JsonPath.parse("$[1].a").select_first([{}, {"a": 5}]) == 5


@pytest.mark.parametrize("path", ["", ".a", "a..b", "a.", "a b", "a[", "a[x]", "a[1.5]", "$a", "a$", 'a[""]', "[*"])
def test_text_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(Refused):
        JsonPath.parse(path)


async def test_margin_covers_two_slow_relays() -> None:
    timings = Timings()
    assert timings.margin(5.0) == 5.0
    for seconds in (1.0, 2.0, 3.0, 4.0):
        timings.record_relay(seconds)
    assert timings.margin(5.0) == 8.0


async def test_what_is_needed_is_claim_fetch_run_and_margin() -> None:
    timings = Timings()
    timings.record_relay(4.0)
    timings.record_fetch(2.0)
    timings.record_run("demo/text", 30.0)
    assert timings.shortest_window("demo/text", 5.0) == 4.0 + 2.0 + 30.0 + 8.0
    assert timings.shortest_window("demo/other", 5.0) == 4.0 + 2.0 + 8.0


async def test_slow_minute_is_forgotten() -> None:
    timings = Timings()
    timings.record_relay(40.0)
    timings.record_run("demo/text", 30.0)
    await trio.sleep(100)
    assert timings.shortest_window("demo/text", 5.0) == 40.0 + 30.0 + 80.0
    await trio.sleep(30)
    assert timings.shortest_window("demo/text", 5.0) == 30.0 + 5.0
    await trio.sleep(3600)
    assert timings.shortest_window("demo/text", 5.0) == 5.0


@pytest.mark.parametrize(
    ("ahead", "now"),
    [
        (3, 1000),  # within the header's resolution of one second
        (300, 700),
        (-300, 1300),
        (899, 101),
        (901, 1000),  # not believed
    ],
)
async def test_clock_is_corrected_by_what_the_coordinator_tells(ahead: float, now: int) -> None:
    clock = Clock(lambda: 1000.0)
    clock.observe(1000 - ahead - 0.5)
    assert (clock.now(), clock.is_skew_plausible) == (now, abs(ahead) <= 900)


async def test_stale_clock_gives_way_to_the_other() -> None:
    clock = Clock(lambda: 1000.0)
    clock.observe(700)
    clock.switch_time_source()
    clock.observe(701)
    assert clock.now() == 1000
    clock.observe(400)
    assert clock.now() == pytest.approx(400, abs=1)
