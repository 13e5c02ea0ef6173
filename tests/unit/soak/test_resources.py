import os

import pytest

from tests.soak.resources import GROWS, Look, ProcessUse, TableSize, growth, use_of

START = Look(0.0, {}, {}, 0.0)


def at_rest(memory_mib: float = 100.0, descriptors: int = 50, **rows: int) -> Look:
    use = ProcessUse(memory_mib, descriptors, 600.0)
    tables = {name: TableSize(count, 8192) for name, count in rows.items()}
    return Look(60.0, {"coordinator-0": use, "anvil": use}, tables, 0.0)


def test_sizes_that_stay_are_no_growth() -> None:
    assert growth([START, at_rest(leases=100), at_rest(120, 60, leases=130)]) == []


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (at_rest(memory_mib=200), "coordinator-0 has 200 MiB"),
        (at_rest(descriptors=500), "coordinator-0 has 500 descriptors"),
        (at_rest(leases=9_000), "table leases has 9000 rows"),
    ],
    ids=["memory", "descriptors", "rows"],
)
def test_growth_without_a_reason_is_found(last: Look, said: str) -> None:
    (found,) = growth([START, at_rest(leases=100), at_rest(), last])
    assert found.startswith(f"growth: {said}")


def test_growth_with_a_reason_is_none() -> None:
    assert "jobs" in GROWS
    assert growth([START, at_rest(jobs=100), at_rest(jobs=1_000_000)]) == []


def test_one_round_shows_no_growth() -> None:
    assert growth([START, at_rest(memory_mib=10_000)]) == []


def test_use_of_this_process_is_read() -> None:
    use = use_of(os.getpid())
    assert use is not None
    assert use.memory_mib > 10
    assert use.descriptors >= 3
    assert 0 < use.age_s < 86_400


def test_process_that_is_gone_has_no_use() -> None:
    assert use_of(2**22 + 1) is None
