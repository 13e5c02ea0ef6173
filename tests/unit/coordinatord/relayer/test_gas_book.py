from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.relayer.gas_book import FIRST_LOOK, REGISTRY_SLACK, GasBook, OpKind, enough_gas, intrinsic_gas

TARGET = b"\x01" * 20
CALL = b"\xaa\xbb\xcc\xdd" + b"\x01" * 60


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
    assert 51_428 < share(book) < 83_571
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
