import pytest
import trio

from svcd.base.clock import Clock
from svcd.base.timings import Timings


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
