import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.relayer.coalesce import FIRST_LOOK, REGISTRY_SLACK, GasBook, enough_gas, intrinsic_gas, shape_of

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


SHAPE = shape_of(TARGET, CALL)
ALONE = 300_000


def share(book: GasBook) -> int:
    return book.share(TARGET, CALL, ALONE)


def test_until_a_transaction_has_shown_it_the_estimate_is_an_ops_share() -> None:
    assert share(GasBook()) == ALONE - intrinsic_gas(CALL)


def test_a_share_is_what_many_alike_used_and_a_margin() -> None:
    book = GasBook()
    book.was_used([SHAPE] * 64, FIRST_LOOK + 64 * 48_000)
    assert share(book) == 56_000


def test_a_mixed_transaction_says_nothing_of_anybodys_share() -> None:
    book = GasBook()
    book.was_used([SHAPE] * 63 + [shape_of(TARGET, b"\x00" + CALL[1:])], 64 * 48_000)
    assert share(book) == ALONE - intrinsic_gas(CALL)


def test_a_share_rises_at_once_and_falls_slowly() -> None:
    book = GasBook()
    for used in (48_000, 78_000):
        book.was_used([SHAPE] * 64, FIRST_LOOK + 64 * used)
    assert share(book) == 91_000
    book.was_used([SHAPE] * 64, FIRST_LOOK + 64 * 48_000)
    assert 56_000 < share(book) < 91_000
    for _ in range(100):
        book.was_used([SHAPE] * 64, FIRST_LOOK + 64 * 48_000)
    assert share(book) == pytest.approx(56_000, rel=0.01)


def test_few_together_teach_only_what_is_not_known() -> None:
    book = GasBook()
    book.was_used([SHAPE], 90_000)
    assert share(book) == 105_000
    book.was_used([SHAPE] * 64, FIRST_LOOK + 64 * 48_000)
    fallen = share(book)
    book.was_used([SHAPE], 90_000)
    assert share(book) == fallen < 105_000


def test_starving_doubles_a_share_and_never_past_the_estimate() -> None:
    book = GasBook()
    book.starved([SHAPE] * 64)
    assert share(book) == ALONE - intrinsic_gas(CALL)
    book.was_used([SHAPE] * 64, FIRST_LOOK + 64 * 48_000)
    book.starved([SHAPE] * 64)
    assert share(book) == 112_000
    for _ in range(10):
        book.starved([SHAPE] * 64)
    assert share(book) == ALONE - intrinsic_gas(CALL)


@given(st.lists(st.one_of(st.none(), st.integers(0, 10**6)), max_size=40))
def test_whatever_it_is_taught_a_share_stays_between_what_was_used_and_the_estimate(lessons: list[int | None]) -> None:
    book, least = GasBook(), 0
    for used in lessons:
        if used is None:
            book.starved([SHAPE] * 64)
        else:
            book.was_used([SHAPE] * 64, FIRST_LOOK + 64 * used)
            least = used
    assert min(least, ALONE - intrinsic_gas(CALL)) <= share(book) <= ALONE - intrinsic_gas(CALL)


def test_a_simulation_tells_a_share_until_a_receipt_does() -> None:
    book = GasBook()
    book.simulated(TARGET, CALL, intrinsic_gas(CALL) + 80_000)
    assert book.share(TARGET, CALL, 500_000) == 80_000 * 5 // 4 * 7 // 6
    book.was_used([shape_of(TARGET, CALL)] * 64, FIRST_LOOK + 64 * 200_000)
    book.simulated(TARGET, CALL, intrinsic_gas(CALL) + 80_000)
    assert book.share(TARGET, CALL, 500_000) == 200_000 * 7 // 6


def test_enough_gas_for_a_simulated_op_holds_what_a_refund_gave_back_and_what_the_registry_wants_to_see() -> None:
    used = 100_000
    assert enough_gas(CALL, intrinsic_gas(CALL) + used) == intrinsic_gas(CALL) + used * 5 // 4 + REGISTRY_SLACK
