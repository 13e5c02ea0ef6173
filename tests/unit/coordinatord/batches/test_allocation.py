from hypothesis import given
from hypothesis import strategies as st

from coordinatord.api.batches.allocation import allocate_lines, distribute_round_robin

Demand = tuple[int, dict[int, int]]  # lines, and costs by provider

rooms = st.dictionaries(st.integers(1, 6), st.integers(0, 40), max_size=6)


@st.composite
def markets(draw: st.DrawFn) -> tuple[list[Demand], dict[int, int]]:
    room = draw(rooms)
    ids = st.permutations(sorted(room)).map(lambda order: order[: len(order)])
    wanted = [
        (draw(st.integers(0, 120)), {provider: draw(st.integers(0, 3)) for provider in draw(ids)})
        for _ in range(draw(st.integers(1, 3)))
    ]
    return wanted, room


def one_by_one(wanted: list[Demand], room: dict[int, int]) -> list[dict[int, int]]:
    """Reference implementation: give line after line to the cheapest provider with room, and among equals to the one
    with the fewest lines."""
    left, plans = dict(room), []
    for lines, costs in wanted:
        taken: dict[int, int] = {}
        for _ in range(lines):
            bidders = [provider for provider in costs if left[provider]]
            if not bidders:
                break
            best = min(bidders, key=lambda provider: (costs[provider], taken.get(provider, 0)))
            taken[best] = taken.get(best, 0) + 1
            left[best] -= 1
        plans.append(taken)
    return plans


@given(markets())
def test_allocation_equals_the_line_by_line_reference(market: tuple[list[Demand], dict[int, int]]) -> None:
    assert allocate_lines(*market) == one_by_one(*market)


@given(markets())
def test_allocation_respects_room_and_line_counts(
    market: tuple[list[Demand], dict[int, int]],
) -> None:
    wanted, room = market
    plans = allocate_lines(wanted, room)
    for provider, most in room.items():
        assert sum(plan.get(provider, 0) for plan in plans) <= most
    for (lines, _), plan in zip(wanted, plans, strict=True):
        assert sum(plan.values()) <= lines


@given(st.integers(0, 300), rooms)
def test_equals_differ_by_one_at_most_while_both_have_room(lines: int, room: dict[int, int]) -> None:
    turns = distribute_round_robin(lines, room)
    assert sum(turns.values()) == min(lines, sum(room.values()))
    with_room = [turns[provider] for provider in room if turns[provider] < room[provider]]
    assert not with_room or max(turns.values()) - min(with_room) <= 1


def test_millions_of_lines_are_allocated_at_once() -> None:
    room = {1: 4_000_000_000, 2: 3, 3: 4_000_000_000}
    assert distribute_round_robin(4_000_000_000, room) == {1: 1_999_999_999, 2: 3, 3: 1_999_999_998}
