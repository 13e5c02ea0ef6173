import pytest

from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs, SignedVersion


def version(name: bytes) -> SignedVersion:
    return SignedVersion(name.ljust(32, b"\0"), name, max_fee=10, max_tip=1, is_self_transfer=False)


def tx(nonce: int) -> PendingTx:
    return PendingTx(100 + nonce, nonce, b"\x01" * 20, 1000, [version(b"first %d" % nonce)])


def test_transaction_is_found_by_every_version() -> None:
    pending, one = PendingTxs([tx(3)]), None
    one = next(iter(pending))
    pending.replace(one, version(b"second"))
    assert [pending.find_by_hash(v.hash) for v in one.versions] == [one, one]
    pending.remove(one)
    assert [pending.find_by_hash(v.hash) for v in one.versions] == [None, None]
    assert len(pending) == 0


def test_transactions_are_in_nonce_order() -> None:
    pending = PendingTxs([tx(5), tx(3), tx(4)])
    assert [one.nonce for one in pending] == [3, 4, 5]


def test_resend_delay_depends_on_the_outcome() -> None:
    one = tx(1)
    one.record_accepted(now=100.0)
    assert one.next_send_at == pytest.approx(110.0)
    waits = []
    for _ in range(8):
        one.record_not_accepted(now=0.0)
        waits.append(one.next_send_at)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(5.0)


def test_replacement_is_due_immediately() -> None:
    one = tx(1)
    one.record_not_accepted(now=50.0)
    one.is_underpriced = True
    one.add_version(version(b"second"))
    assert one.next_send_at == pytest.approx(0.0)
    assert not one.is_underpriced


def test_cost_equals_the_nodes_reservation() -> None:
    assert PendingTxs([tx(1), tx(2)]).max_cost == 2 * 1000 * 10


def test_transaction_is_lost_after_a_lasting_missing_receipt() -> None:
    one = tx(1)
    assert not one.record_missing_receipt(now=50.0)
    assert not one.record_missing_receipt(now=50.5)
    assert one.record_missing_receipt(now=51.0)


def test_turn_starts_with_the_answer_and_the_nonce() -> None:
    one = tx(1)
    assert not one.turn_has_passed(since=0.0, now=1000.0, mined_within_s=10.0)
    one.record_verdict(100.0, 7, accepted=True)
    one.record_verdict(109.0, 8, accepted=True)  # sent again as a reminder
    assert not one.turn_has_passed(since=0.0, now=109.9, mined_within_s=10.0)
    assert one.turn_has_passed(since=0.0, now=110.0, mined_within_s=10.0)
    assert not one.turn_has_passed(since=105.0, now=110.0, mined_within_s=10.0)
    one.add_version(version(b"second"))
    assert not one.turn_has_passed(since=0.0, now=1000.0, mined_within_s=10.0)


def test_turns_double_and_refused_ones_are_shorter() -> None:
    one = tx(1)
    one.record_verdict(0.0, 7, accepted=False)
    assert not one.turn_has_passed(since=0.0, now=1.9, mined_within_s=10.0)
    assert one.turn_has_passed(since=0.0, now=2.0, mined_within_s=10.0)
    one.turns_passed = 2
    assert not one.turn_has_passed(since=0.0, now=7.9, mined_within_s=10.0)
    assert one.turn_has_passed(since=0.0, now=8.0, mined_within_s=10.0)
