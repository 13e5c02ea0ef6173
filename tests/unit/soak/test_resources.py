import pytest

from tests.soak.resources import Look, ProcessUse, TableSize, growth

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
