from itertools import islice

import pytest

from tests.soak.faults.kinds import KINDS
from tests.soak.faults.schedule import SHORTENED, Planned, crowded_lanes, lanes, planned


def first(count: int, seed: int, kinds: tuple[str, ...] = tuple(KINDS)) -> list[list[Planned]]:
    return [list(islice(planned(lane), count)) for lane in lanes(kinds, seed, 5.0)]


def test_seed_decides_every_fault_its_time_and_its_own_choices() -> None:
    ours, again = first(40, 7), first(40, 7)
    assert ours == again
    assert [[one.random.random() for one in lane] for lane in ours] == [
        [one.random.random() for one in lane] for lane in again
    ]
    assert ours != first(40, 8)


def test_every_kind_strikes_once_before_any_strikes_twice() -> None:
    for lane in lanes(KINDS, 1, 5.0):
        kinds = len(lane.kinds)
        struck = [one.kind for one in islice(planned(lane), 2 * kinds)]
        assert set(struck[:kinds]) == set(struck[kinds:]) == set(lane.kinds)


def test_processes_die_while_other_faults_go_on() -> None:
    others, processes = lanes(KINDS, 1, 5.0)
    assert set(others.kinds).isdisjoint(processes.kinds)
    assert {*others.kinds, *processes.kinds} == set(KINDS)


@pytest.mark.parametrize("kinds", [(), ("reorg",), ("coordinator_killed",)])
def test_lanes_without_faults_are_left_out(kinds: tuple[str, ...]) -> None:
    assert [list(lane.kinds) for lane in lanes(kinds, 1, 5.0)] == [[kind] for kind in kinds]


def test_faults_last_as_long_as_their_kind_may() -> None:
    for one in (one for lane in first(200, 3) for one in lane):
        assert KINDS[one.kind].least <= one.seconds <= KINDS[one.kind].most
        assert one.pause >= 0


def test_crowded_lanes_strike_every_service_at_their_pace() -> None:
    crowded = crowded_lanes(KINDS, 1, 1.0)
    assert sorted(kind for lane in crowded for kind in lane.kinds) == sorted(KINDS)
    assert len(crowded) == 6
    strikes_a_second = sum(600 / sum(one.pause for one in islice(planned(lane), 600)) for lane in crowded)
    assert 0.9 < strikes_a_second < 1.1


def test_faults_of_crowded_lanes_are_short() -> None:
    for lane in crowded_lanes(KINDS, 2, 1.0):
        assert all(one.seconds <= SHORTENED * KINDS[one.kind].most for one in islice(planned(lane), 200))


def test_deep_reorgs_leave_crowded_runs_something_to_check() -> None:
    chain = next(lane for lane in crowded_lanes(KINDS, 1, 1.0) if "reorg" in lane.kinds)
    struck = [one.kind for one in islice(planned(chain), 400)]
    assert 3 < struck.count("reorg") / struck.count("reorg_beyond_journal") < 5
