from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.chain.relayer.gas_book import (
    FIRST_LOOK,
    REGISTRY_SLACK,
    GasBook,
    OpKind,
    enough_gas,
    floor_gas,
    intrinsic_gas,
)

TARGET = b"\x01" * 20
CALL = b"\xaa\xbb\xcc\xdd" + b"\x01" * 60


def test_calldata_costs_by_its_zeros_and_other_bytes() -> None:
    assert intrinsic_gas(b"\x00\x00\x00\x01\x02") == 21_000 + 3 * 4 + 2 * 16
    assert floor_gas(b"\x00\x00\x00\x01\x02") == 21_000 + 3 * 10 + 2 * 40


def test_nothing_is_known_of_a_new_kind() -> None:
    book = GasBook()
    book.learn(TARGET, CALL, 100_000)
    assert book.limit(TARGET, b"\x00" + CALL[1:]) is None
    assert book.limit(b"\x02" * 20, CALL) is None


def test_the_limit_lies_above_the_dearest_seen() -> None:
    book = GasBook()
    for estimate in (100_000, 156_000, 90_000):
        book.learn(TARGET, CALL, estimate)
    limit = book.limit(TARGET, CALL)
    assert limit is not None
    assert 156_000 < limit < 200_000


def test_what_costs_less_than_its_bytes_executes_nothing() -> None:
    """Not less than nothing: a node's figure may be anything."""
    book, less = GasBook(), intrinsic_gas(CALL) - 10
    assert book.share(KIND, CALL, less) == 0
    book.learn(TARGET, CALL, less)
    assert book.limit(TARGET, CALL) == intrinsic_gas(CALL)
    book.simulated(TARGET, CALL, less)
    assert book.share(KIND, CALL, ALONE) == 0
    assert enough_gas(CALL, less) == intrinsic_gas(CALL) + REGISTRY_SLACK
    for ops in (1, 2):
        book = GasBook()
        book.was_used([KIND] * ops, 0)
        assert book.share(KIND, CALL, ALONE) == 0


def test_ops_of_another_size_are_another_kind() -> None:
    book = GasBook()
    book.learn(TARGET, CALL, 100_000)
    assert book.limit(TARGET, CALL + bytes(4096)) is None


KIND = OpKind.of(TARGET, CALL)
ALONE = 300_000


def share(book: GasBook) -> int:
    return book.share(KIND, CALL, ALONE)


def test_until_a_transaction_has_shown_it_the_estimate_is_an_ops_share() -> None:
    assert share(GasBook()) == ALONE - intrinsic_gas(CALL)


def test_a_share_is_what_many_alike_used_and_a_margin() -> None:
    book = GasBook()
    book.was_used([KIND] * 64, FIRST_LOOK + 64 * 48_000)
    assert share(book) == 51_428


def test_a_mixed_transaction_says_nothing_of_anybodys_share() -> None:
    book = GasBook()
    book.was_used([KIND] * 63 + [OpKind.of(TARGET, b"\x00" + CALL[1:])], 64 * 48_000)
    assert share(book) == ALONE - intrinsic_gas(CALL)


def test_a_share_rises_at_once_and_falls_slowly() -> None:
    book = GasBook()
    for used in (48_000, 78_000):
        book.was_used([KIND] * 64, FIRST_LOOK + 64 * used)
    assert share(book) == 83_571
    book.was_used([KIND] * 64, FIRST_LOOK + 64 * 48_000)
    assert share(book) == (78_000 - (78_000 - 48_000) // 8) * 15 // 14
    for _ in range(100):
        book.was_used([KIND] * 64, FIRST_LOOK + 64 * 48_000)
    assert share(book) == pytest.approx(51_428, rel=0.01)


def test_few_together_teach_only_what_is_not_known() -> None:
    book = GasBook()
    book.was_used([KIND], 90_000)
    assert share(book) == 96_428
    book.was_used([KIND] * 64, FIRST_LOOK + 64 * 48_000)
    fallen = share(book)
    book.was_used([KIND], 90_000)
    assert share(book) == fallen == 51_428


def test_two_alike_have_two_parts_of_the_first_look_taken_off() -> None:
    book = GasBook()
    book.was_used([KIND] * 2, 100_000)
    assert share(book) == (100_000 - FIRST_LOOK * 2 // 64) // 2 * 15 // 14


@pytest.mark.parametrize(("ops", "teaches"), [(15, False), (16, True)])
def test_sixteen_ops_are_many(ops: int, *, teaches: bool) -> None:
    guessed, known = GasBook(), GasBook()
    guessed.simulated(TARGET, CALL, intrinsic_gas(CALL) + 80_000)
    known.was_used([KIND] * 64, FIRST_LOOK + 64 * 48_000)
    for book in (guessed, known):
        before = share(book)
        book.was_used([KIND] * ops, ops * 60_000)
        assert (share(book) != before) is teaches
    told = share(guessed)
    assert (told == (16 * 60_000 - FIRST_LOOK // 4) // 16 * 15 // 14) is teaches
    guessed.was_used([KIND] * 64, FIRST_LOOK + 64 * 20_000)  # no guess any more: it falls slowly
    assert (share(guessed) > told / 2) is teaches


def test_starving_doubles_a_share_and_never_past_the_estimate() -> None:
    book = GasBook()
    book.starved([KIND] * 64)
    assert share(book) == ALONE - intrinsic_gas(CALL)
    book.was_used([KIND] * 64, FIRST_LOOK + 64 * 48_000)
    book.starved([KIND] * 64)
    assert share(book) == 102_857
    for _ in range(10):
        book.starved([KIND] * 64)
    assert share(book) == ALONE - intrinsic_gas(CALL)


@given(st.lists(st.one_of(st.none(), st.integers(0, 10**6)), max_size=40))
def test_whatever_it_is_taught_a_share_stays_between_what_was_used_and_the_estimate(lessons: list[int | None]) -> None:
    book, least = GasBook(), 0
    for used in lessons:
        if used is None:
            book.starved([KIND] * 64)
        else:
            book.was_used([KIND] * 64, FIRST_LOOK + 64 * used)
            least = used
    assert min(least, ALONE - intrinsic_gas(CALL)) <= share(book) <= ALONE - intrinsic_gas(CALL)


def test_a_simulation_tells_a_share_until_a_receipt_does() -> None:
    book = GasBook()
    book.simulated(TARGET, CALL, intrinsic_gas(CALL) + 80_000)
    assert book.share(KIND, CALL, 500_000) == 80_000 * 5 // 4 * 15 // 14
    book.was_used([OpKind.of(TARGET, CALL)] * 64, FIRST_LOOK + 64 * 200_000)
    book.simulated(TARGET, CALL, intrinsic_gas(CALL) + 80_000)
    assert book.share(KIND, CALL, 500_000) == 200_000 * 15 // 14


def test_a_simulation_tells_as_much_of_an_op_that_builds_on_another() -> None:
    book, on_top = GasBook(), OpKind.of(TARGET, CALL, on_top=True)
    book.simulated(TARGET, CALL, intrinsic_gas(CALL) + 80_000)
    assert book.share(on_top, CALL, ALONE) == share(book) == 80_000 * 5 // 4 * 15 // 14


def test_enough_gas_for_a_simulated_op_holds_what_a_refund_gave_back_and_what_the_registry_wants_to_see() -> None:
    used = 100_000
    assert enough_gas(CALL, intrinsic_gas(CALL) + used) == intrinsic_gas(CALL) + used * 5 // 4 + REGISTRY_SLACK


def test_first_receipt_of_many_stands_for_what_was_only_simulated() -> None:
    book = GasBook()
    book.simulated(TARGET, CALL, intrinsic_gas(CALL) + 80_000)
    book.was_used([KIND] * 64, FIRST_LOOK + 64 * 48_000)
    assert share(book) == 51_428


# Ops of several kinds in one transaction.

CALLS = [bytes([number]) * 4 + b"\x01" * 60 for number in range(1, 4)]
KINDS = [OpKind.of(TARGET, call) for call in CALLS]
TRUE_GAS = (48_000, 61_000, 26_000)


def told_of_each(book: GasBook, gas: Sequence[int] = TRUE_GAS) -> None:
    """What simulations tell: each alone, with nothing warm."""
    for call, used in zip(CALLS, gas, strict=True):
        book.simulated(TARGET, call, intrinsic_gas(call) + used + 45_000)


def planned(book: GasBook, counts: Sequence[int]) -> int:
    each = [(kind, book.share(kind, call, 1_000_000)) for kind, call in zip(KINDS, CALLS, strict=True)]
    return book.together(one for one, count in zip(each, counts, strict=True) for _ in range(count))


def teach(book: GasBook, counts: Sequence[int], gas: Sequence[int] = TRUE_GAS, first: int = 0) -> None:
    """`first`: what they have in common, which is `FIRST_LOOK` at most."""
    kinds = [kind for kind, count in zip(KINDS, counts, strict=True) for _ in range(count)]
    book.was_used(kinds, first + taken(counts, gas))


def taken(counts: Sequence[int], gas: Sequence[int] = TRUE_GAS) -> int:
    return sum(count * each for count, each in zip(counts, gas, strict=True))


@pytest.mark.parametrize("counts", [(21, 21, 21), (5, 5, 5), (200, 200, 200)])
def test_mix_is_planned_by_what_its_like_used(counts: tuple[int, int, int]) -> None:
    book = GasBook()
    told_of_each(book)
    assert planned(book, counts) > 1.8 * taken(counts)
    teach(book, (21, 21, 21))
    assert taken(counts) < planned(book, counts) < 1.08 * taken(counts)


def test_of_a_mix_nothing_is_lost_by_rounding() -> None:
    book = GasBook()
    told_of_each(book)
    teach(book, (30, 30, 30), first=FIRST_LOOK)
    assert planned(book, (30, 30, 30)) == (taken((30, 30, 30)) + 1) * 15 // 14


def test_ops_of_which_no_mix_tells_take_their_shares() -> None:
    assert GasBook().together([(KINDS[0], 100), (KINDS[1], 200), (KINDS[0], 300)]) == 600


@pytest.mark.parametrize(("counts", "teaches"), [((5, 5, 5), False), ((6, 5, 5), True)])
def test_mix_of_sixteen_ops_tells(counts: tuple[int, int, int], *, teaches: bool) -> None:
    book = GasBook()
    told_of_each(book)
    before = planned(book, (20, 20, 20))
    teach(book, counts)
    assert (planned(book, (20, 20, 20)) < before) is teaches


def test_what_a_mix_does_not_cover_of_a_kind_counts_by_the_dearest_of_it() -> None:
    book = GasBook()
    told_of_each(book)
    teach(book, (20, 20, 20))
    each = [(kind, book.share(kind, call, 1_000_000)) for kind, call in zip(KINDS, CALLS, strict=True)] * 20
    assert book.together([*each, *[(KINDS[0], 1)] * 5]) > book.together(each) + 5 * TRUE_GAS[0]


def test_mix_with_a_kind_of_which_nothing_is_known_tells_nothing() -> None:
    book = GasBook()
    for call in CALLS[:2]:
        book.simulated(TARGET, call, intrinsic_gas(call) + 100_000)
    before = planned(book, (20, 20, 20))
    teach(book, (20, 20, 20))
    assert planned(book, (20, 20, 20)) == before


@pytest.mark.parametrize(("kinds", "teaches"), [(8, True), (9, False)])
def test_mix_of_more_than_eight_kinds_tells_nothing(kinds: int, *, teaches: bool) -> None:
    book, ops = GasBook(), [bytes([number]) * 4 + b"\x01" * 60 for number in range(1, 1 + kinds)]
    for call in ops:
        book.simulated(TARGET, call, intrinsic_gas(call) + 100_000)
    each = [(OpKind.of(TARGET, call), book.share(OpKind.of(TARGET, call), call, 1_000_000)) for call in ops] * 3
    before = book.together(each)
    book.was_used([kind for kind, _ in each], 30_000 * len(each))
    assert (book.together(each) < before) is teaches


def test_mixes_of_other_proportions_are_kept_beside_one_another() -> None:
    book, even, uneven = GasBook(), (20, 20, 20), (40, 10, 10)
    told_of_each(book)
    teach(book, even)
    before = planned(book, uneven)
    teach(book, uneven)
    assert planned(book, uneven) < before
    assert planned(book, even) < 1.08 * taken(even)


def test_mix_is_held_against_the_least_that_is_known_of_what_it_does_not_cover() -> None:
    book, dear = GasBook(), 400_000
    told_of_each(book)
    for call in CALLS:
        book.learn(TARGET, call, intrinsic_gas(call) + dear)
    teach(book, (20, 20, 20), first=FIRST_LOOK)
    teach(book, (30, 20, 20), first=FIRST_LOOK)
    bound = taken((20, 20, 20)) + FIRST_LOOK - FIRST_LOOK * 60 // 64 + 10 * ((TRUE_GAS[0] + 45_000) * 5 // 4)
    used = taken((30, 20, 20))
    assert planned(book, (30, 20, 20)) == (int(bound - (bound - used) / 2) + 1) * 15 // 14


def test_of_64_sets_of_kinds_the_one_that_was_taught_least_lately_is_forgotten() -> None:
    book, ops = GasBook(), [bytes([number]) * 4 + b"\x01" * 60 for number in range(1, 67)]
    for call in ops:
        book.simulated(TARGET, call, intrinsic_gas(call) + 100_000)
    kinds = [OpKind.of(TARGET, call) for call in ops]
    pair = [(kind, book.share(kind, call, 1_000_000)) for kind, call in zip(kinds[:2], ops, strict=False)] * 10
    untold = book.together(pair)
    for other in kinds[1:65]:
        book.was_used([kinds[0], other] * 10, 20 * 30_000)
    assert book.together(pair) < untold
    book.was_used([kinds[0], kinds[65]] * 10, 20 * 30_000)
    assert book.together(pair) == untold


def test_mix_says_nothing_of_whose_the_gas_was() -> None:
    """Of the 135,000 of three ops any one may have taken nearly all: many of one kind are planned by their shares."""
    book = GasBook()
    told_of_each(book)
    before = planned(book, (64, 0, 0))
    teach(book, (21, 21, 21))
    assert planned(book, (64, 0, 0)) == before
    assert planned(book, (62, 1, 1)) > taken((62, 1, 1), (100_000, 34_000, 1_000))


def test_what_a_mix_does_not_cover_is_planned_by_its_shares() -> None:
    book = GasBook()
    told_of_each(book)
    teach(book, (20, 20, 20))
    more = planned(book, (25, 20, 20)) - planned(book, (20, 20, 20))
    assert 5 * TRUE_GAS[0] < more <= 5 * book.share(KINDS[0], CALLS[0], 1_000_000) + 5


def test_mix_that_took_more_stands_at_once_and_one_that_took_less_by_and_by() -> None:
    book = GasBook()
    told_of_each(book)
    counts, dear = (20, 20, 20), tuple(gas + 20_000 for gas in TRUE_GAS)
    teach(book, counts)
    teach(book, counts, dear)
    assert planned(book, counts) > taken(counts, dear)
    teach(book, counts)
    assert taken(counts) < planned(book, counts) < taken(counts, dear)
    for _ in range(10):
        teach(book, counts)
    assert planned(book, counts) < 1.08 * taken(counts)


def test_starving_forgets_the_mix() -> None:
    book = GasBook()
    told_of_each(book)
    counts = (20, 20, 20)
    teach(book, counts)
    book.starved([kind for kind in KINDS for _ in range(20)])
    assert planned(book, counts) > 3 * taken(counts)


def test_op_that_builds_on_another_of_its_transaction_is_of_a_kind_of_its_own() -> None:
    book = GasBook()
    on_top = OpKind.of(TARGET, CALL, on_top=True)
    book.was_used([on_top] * 64, FIRST_LOOK + 64 * 20_000)
    assert share(book) == ALONE - intrinsic_gas(CALL)
    assert book.share(on_top, CALL, ALONE) == 21_428


COUNTS = st.tuples(*[st.integers(0, 40)] * 3)


@given(st.tuples(*[st.integers(1_000, 200_000)] * 3), st.integers(0, FIRST_LOOK), st.lists(COUNTS, max_size=12), COUNTS)
def test_ops_that_take_what_their_like_took_are_never_planned_short(
    gas: tuple[int, int, int], first: int, lessons: list[tuple[int, int, int]], counts: tuple[int, int, int]
) -> None:
    book = GasBook()
    told_of_each(book, gas)
    for lesson in lessons:
        teach(book, lesson, gas, first)
    assert planned(book, counts) + FIRST_LOOK >= taken(counts, gas) + first


def test_few_that_had_less_in_common_than_is_allowed_for_do_not_starve_many() -> None:
    """What is taken off for it and was not there, is taken from each op of a larger transaction."""
    book = GasBook()
    for _ in range(20):
        book.was_used([KIND] * 16, 16 * 48_000)
    assert 64 * share(book) >= 64 * 48_000


def test_gas_that_an_op_wants_to_find_counts_beside_its_share_and_without_a_margin() -> None:
    book = GasBook()
    book.learn(TARGET, CALL, intrinsic_gas(CALL) + 330_000)
    book.was_used([KIND] * 64, FIRST_LOOK + 64 * 48_000)
    alone = book.limit(TARGET, CALL)
    assert alone is not None
    assert book.unused(KIND, CALL, alone) == 330_000 - 48_000


def test_gas_that_an_op_leaves_is_nothing_where_its_share_is_more_than_it_was_to_find() -> None:
    book = GasBook()
    book.was_used([KIND] * 64, FIRST_LOOK + 64 * 48_000)
    assert book.unused(KIND, CALL, intrinsic_gas(CALL) + 47_000) == 0
    assert book.unused(KIND, CALL, intrinsic_gas(CALL) + 50_000) == 2_000
