import math

import pytest

from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs
from coordinatord.chain.relayer.transactions_sql import Version


def version(name: bytes) -> Version:
    return Version(name.ljust(32, b"\0"), name, max_fee=10, max_tip=1, fills=False)


def tx(nonce: int) -> PendingTx:
    return PendingTx(100 + nonce, nonce, b"\x01" * 20, 1000, [version(b"first %d" % nonce)])


def test_every_version_of_a_transaction_is_found_and_all_go_with_it() -> None:
    pending, one = PendingTxs([tx(3)]), None
    one = next(iter(pending))
    pending.replace(one, version(b"second"))
    assert [pending.with_hash(v.hash) for v in one.versions] == [one, one]
    pending.remove(one)
    assert [pending.with_hash(v.hash) for v in one.versions] == [None, None]
    assert len(pending) == 0


def test_what_is_due_comes_in_nonce_order() -> None:
    pending = PendingTxs([tx(5), tx(3), tx(4)])
    assert [one.nonce for one in pending.due(now=0.0)] == [3, 4, 5]


def test_sent_ones_are_due_again_later_and_refused_ones_ever_less_often() -> None:
    one = tx(1)
    one.was_taken(now=100.0)
    assert one.due == pytest.approx(110.0)
    waits = []
    for _ in range(8):
        one.was_not_taken(now=0.0)
        waits.append(one.due)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(5.0)


def test_a_replacement_is_due_at_once_whatever_was_said_of_the_version_before() -> None:
    one = tx(1)
    one.was_not_taken(now=50.0)
    one.underpriced = True
    one.replaced_by(version(b"second"))
    assert one.due == pytest.approx(0.0)
    assert not one.underpriced


def test_the_cost_is_what_nodes_set_aside() -> None:
    assert PendingTxs([tx(1), tx(2)]).cost == 2 * 1000 * 10


def test_transaction_without_a_receipt_is_lost_only_when_that_lasts() -> None:
    one = tx(1)
    assert not one.is_missing(now=50.0)
    assert not one.is_missing(now=50.5)
    assert one.is_missing(now=51.0)


def test_the_oldest_is_the_one_that_a_node_took_first_however_often_it_was_reminded() -> None:
    pending = PendingTxs([tx(1), tx(2), tx(3)])
    assert pending.oldest_taken_at() == math.inf
    first, second, _ = pending
    second.was_taken(now=7.0)
    first.was_taken(now=8.0)
    second.was_taken(now=9.0)
    assert pending.oldest_taken_at() == pytest.approx(7.0)
    pending.remove(second)
    assert pending.oldest_taken_at() == pytest.approx(8.0)


def test_it_waits_in_vain_from_when_a_node_has_it_and_its_nonce_is_next_and_twice_as_long_with_each_version() -> None:
    one = tx(1)
    assert not one.waits_in_vain(since=0.0, now=1000.0, patience=10.0)
    one.was_taken(now=100.0)
    one.was_taken(now=109.0)  # reminded
    assert not one.waits_in_vain(since=0.0, now=109.9, patience=10.0)
    assert one.waits_in_vain(since=0.0, now=110.0, patience=10.0)
    assert not one.waits_in_vain(since=105.0, now=110.0, patience=10.0)
    one.replaced_by(version(b"second"))
    assert not one.waits_in_vain(since=0.0, now=1000.0, patience=10.0)
    one.was_taken(now=200.0)
    assert not one.waits_in_vain(since=0.0, now=219.9, patience=10.0)
    assert one.waits_in_vain(since=0.0, now=220.0, patience=10.0)


def held_by_a_node(*taken_at: float) -> tuple[PendingTxs, list[PendingTx]]:
    txs = [tx(nonce) for nonce in range(len(taken_at))]
    for each, at in zip(txs, taken_at, strict=True):
        each.was_taken(at)
    return PendingTxs(reversed(txs)), txs


def test_what_a_node_had_before_a_block_that_left_room_for_it_is_due_again_at_once() -> None:
    pending, txs = held_by_a_node(1.0, 2.0, 5.5)
    pending.remind_of_lost(since=5.0, room=1000)
    assert pending.due(6.0) == txs[:2]


@pytest.mark.parametrize(
    ("taken_at", "room"),
    [((5.5, 1.0), 1000), ((1.0, 1.0), 999)],
    ids=["the one whose turn it is came with the last block", "the block was full"],
)
def test_block_that_proves_nothing_lost_reminds_of_nothing(taken_at: tuple[float, ...], room: int) -> None:
    pending, _ = held_by_a_node(*taken_at)
    pending.remind_of_lost(since=5.0, room=room)
    assert pending.due(6.0) == []


def test_one_that_no_node_took_yet_is_left_to_its_own_time() -> None:
    pending = PendingTxs([tx(0)])
    (waiting,) = pending
    waiting.was_not_taken(5.9)
    pending.remind_of_lost(since=5.0, room=1000)
    assert pending.due(6.0) == []


def test_no_more_than_a_few_blocks_worth_is_sent_again_at_once() -> None:
    pending, txs = held_by_a_node(*[1.0] * 100)
    pending.remind_of_lost(since=5.0, room=1000)
    assert pending.due(6.0) == txs[:32]
