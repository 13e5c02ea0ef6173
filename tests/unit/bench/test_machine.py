import os
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate, cycle

import anyio
import attrs
import pytest

from tests.bench.history import same
from tests.bench.machine import MOST_OTHERS, MOST_STOLEN, Bare, Measured, Spent, slowdown, verdict
from tests.bench.row import Row
from tests.cpu_times import cpu_of

CPU = Row.of("CPU", [5, 6, 8], "ms", "4 ms", 4, at_most=1, absolute="CPU")
TIME = Row.of("answer", [5, 6, 8], "ms", "4 ms", 4, at_most=1, absolute="clock")
RATE = Row.of("jobs", [30, 60, 90], "jobs/s", "80/s", 80, target=1, absolute="clock")
RATIO = Row.of("reads", [50, 60, 70], "reads/s", "hello (× 2)", 80, target=1)
TWICE = Bare(cpu=158, clock=158)  # as slow as the machine that the targets were set on
HOW = Measured("market", 60, Bare(158, 170), 0.1, 0.01)


@pytest.mark.parametrize("row", [CPU, TIME], ids=["CPU", "time"])
def test_absolute_targets_scale_with_machine_speed(row: Row) -> None:
    held = TWICE.held(row)
    assert (row.ratio, row.holds) == (1.5, False)
    assert (held.value, held.ratio, held.low, held.high, held.target) == (6, 0.75, 0.6875, 0.875, 1)
    assert held.holds


def test_a_rate_may_be_half_there() -> None:
    held = TWICE.held(RATE)
    assert (RATE.ratio, RATE.holds) == (0.75, False)
    assert (held.value, held.ratio, held.low, held.high, held.target) == (60, 1.5, 1.125, 1.875, 1)
    assert held.holds


def test_cpu_scales_by_cpu_and_the_rest_by_the_clock() -> None:
    busy = Bare(cpu=79, clock=158)  # as fast, with half of the time taken by another process
    assert [busy.held(row).ratio for row in (CPU, TIME, RATE)] == [1.5, 0.75, 1.5]


def test_scaled_limit_shows_both_numbers_and_the_reason() -> None:
    end = "and 79 on the machine of the targets)"
    assert [TWICE.held(row).against for row in (CPU, RATE)] == [
        f"4 ms (8 ms here: two bare recoveries take 158 µs of CPU, {end}",
        f"80/s (40 jobs/s here: two bare recoveries take 158 µs by the clock, {end}",
    ]


def test_large_limit_is_printed_in_full() -> None:
    start = Row.of("start", [900, 910, 920], "ms", "700 ms", 700, at_most=1, absolute="CPU")
    assert TWICE.held(start).against.startswith("700 ms (1,400 ms here: ")


@pytest.mark.parametrize("row", [CPU, TIME, RATE], ids=["CPU", "time", "rate"])
def test_history_figure_is_independent_of_machine_speed(row: Row) -> None:
    assert same(TWICE.held(row)) == same(Bare(237, 237).held(row)) == same(row)


def test_a_faster_machine_has_the_targets_as_they_are() -> None:
    faster = Bare(40, 40)
    assert [(faster.held(row).ratio, faster.held(row).holds) for row in (CPU, RATE)] == [(1.5, False), (0.75, False)]
    assert faster.held(CPU).against.startswith("4 ms (4 ms here: two bare recoveries take 40 µs")


def test_relative_target_is_not_scaled() -> None:
    assert TWICE.held(RATIO) == RATIO


def test_an_absolute_limit_is_one() -> None:
    with pytest.raises(ValueError, match="jobs: an absolute limit is one"):
        Row.of("jobs", [1, 2, 3], "jobs/s", "80/s", [1, 2, 3], target=1, absolute="clock")


def test_recoveries_use_the_median_of_portions() -> None:
    def clock(portions: list[float]) -> Callable[[], float]:
        """Return a clock that is read before and after each portion, with one second between portions."""
        readings = accumulate((span for portion in portions for span in (portion, 1.0)), initial=0.0)
        return lambda: next(readings)

    bare = Bare.now(clock([0.01] * 11), clock([0.02] * 6 + [5.0] * 5))
    assert (bare.cpu, bare.clock) == (pytest.approx(100), pytest.approx(200))


def test_benchmark_speed_is_the_mean_of_before_and_after() -> None:
    assert Bare(80, 90).and_then(Bare(100, 120)) == Bare(90, 105)


def test_recoveries_of_this_machine_take_some_microseconds() -> None:
    bare = Bare.now()
    assert 5 < bare.cpu <= bare.clock * 1.05 < 50_000


def test_shares_count_other_processes_and_stolen_cpu() -> None:
    tick = os.sysconf("SC_CLK_TCK")

    def stat(*seconds: int) -> str:
        return "cpu  " + " ".join(str(one * tick) for one in seconds) + " 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"

    before = Spent.read(stat(100, 10, 20, 1000, 30, 1, 2, 5), ours=7)
    after = Spent.read(stat(120, 15, 25, 1055, 34, 2, 3, 14), ours=32)
    measured = Measured.between("http", 50, TWICE, before, after)
    assert (before.total, before.used, before.stolen) == (1168, 130, 5)
    assert (measured.stolen, measured.others) == (0.09, 0.05)


def test_others_share_is_never_negative() -> None:
    before = Spent(total=0, used=0, stolen=0, ours=0)
    assert Measured.between("http", 1, TWICE, before, Spent(2, 1, 0, 1.01)).others == 0
    assert Measured.between("http", 0, TWICE, before, before).others == 0


def test_ended_children_count_as_ours() -> None:
    (before,) = cpu_of(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    (after,) = cpu_of(os.getpid())
    assert 0.25 < after - before < 5


def test_machine_reports_its_cpu_use() -> None:
    spent = Spent.now()
    assert 0 < spent.ours <= spent.used <= spent.total


def test_a_session_in_which_all_broke_off_has_no_verdict() -> None:
    assert verdict([]) == "nothing was measured"


def test_an_idle_machine_is_good_for_a_verdict() -> None:
    quiet, said = [attrs.evolve(HOW, others=MOST_OTHERS, stolen=MOST_STOLEN), HOW], "at most 25% stolen, 10% used"
    assert verdict(quiet) == f"the machine was idle enough for a verdict: {said} by others"


@pytest.mark.parametrize("change", [{"others": 0.11}, {"stolen": 0.26}])
def test_disturbed_measurement_has_no_verdict(change: dict[str, float]) -> None:
    odd = attrs.evolve(HOW, name="http", **change)
    assert verdict([HOW, odd]) == (
        "the machine was not idle enough for a verdict: over 25% of the CPU was stolen or over 10% used by others"
        f" during http ({odd.stolen:.0%} and {odd.others:.0%})"
    )


def test_benchmark_is_reported_with_its_machine() -> None:
    told = "market, 60 s; two bare recoveries 158 µs of CPU, 170 by the clock; stolen 10% of the CPU, used by others 1%"
    assert str(HOW) == told


@pytest.mark.anyio
async def test_slowdown_comes_from_recoveries() -> None:
    spent = accumulate(cycle([1, 15 * 158e-6]))  # by the run, then by a few pairs of recoveries
    async with slowdown(lambda: next(spent)) as times:
        await anyio.wait_all_tasks_blocked()
        assert times() == pytest.approx(2)
