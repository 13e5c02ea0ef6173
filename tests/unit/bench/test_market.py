from statistics import harmonic_mean, mean

import attrs
import pytest

from tests.bench.market import PARTS, Ends, Taken, Watched, _Look

CPU = [
    {"anvil": 9.0, "coordinatord": 1.0, "coordinatord 2": 3.0, "svcd": 1.0},
    {"anvil": 9.0, "coordinatord": 2.0, "coordinatord 2": 1.0, "svcd": 1.0},
    {"anvil": 9.0, "coordinatord": 4.0, "coordinatord 2": 1.0, "svcd": 4.0},
]
TAKEN = Taken(jobs=60, seconds=10, paces=[], slices=CPU, slowdown=1, gas=0.3, held=0.9)


def test_paces_cover_equal_parts_without_the_ends() -> None:
    blocks = [(at, settles, 0) for at, settles in enumerate([4, 6, 10, 20, 12, 14, 8, 16, 4, 6])]
    assert Ends(blocks).paces(100) == [15, 13, 12]


def test_a_block_that_comes_late_counts_with_its_seconds() -> None:
    blocks = [(0, 10, 0), (1, 20, 0), (6, 20, 0), (7, 20, 0), (8, 20, 0), (9, 10, 0)]
    paces = Ends(blocks).paces(100)
    assert len(paces) == PARTS
    assert paces == [20, pytest.approx(20 / 5), 20]


def test_too_few_blocks_have_no_paces() -> None:
    assert Ends([(0, 30, 0), (1, 40, 0), (2, 30, 0)]).paces(100) is None


def test_cpu_of_parts_averages_to_the_whole_batch() -> None:
    assert TAKEN.cpu == {"anvil": 27, "coordinatord": 7, "coordinatord 2": 5, "svcd": 6}
    assert mean(TAKEN.cpu_a_job) == pytest.approx(1000 * 45 / 60)


def test_the_busiest_is_one_daemon_over_the_whole_batch() -> None:
    assert TAKEN.busiest == [20, 10, 5]
    assert harmonic_mean(TAKEN.busiest) == pytest.approx(60 / 7)


def test_slow_machine_times_are_scaled_to_the_target_machine() -> None:
    slower = attrs.evolve(TAKEN, slowdown=1.5)
    assert slower.busiest == [30, 15, 7.5]


def test_slices_are_equal_parts_of_the_time_by_the_nearest_looks() -> None:
    watched = Watched("", 1, {})
    watched.looks = [_Look(at, {"svcd": spent}) for at, spent in [(0, 1), (2.1, 2), (4.2, 4), (5, 5), (6, 9)]]
    assert watched.slices() == [{"svcd": 1}, {"svcd": 2}, {"svcd": 5}]
