"""Pending transactions, and the effects of broadcast outcomes on them."""

import pytest

from common.secp256k1 import Wallet
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.broadcast import SendResult, SentVersion, apply_sent_versions
from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs, SignedVersion
from coordinatord.chain.relayer.tx_size import MAX_TX_BYTES, TX_GAS_CAP


def version(name: bytes) -> SignedVersion:
    return SignedVersion(name.ljust(32, b"\0"), name, max_fee=10, max_tip=1, is_self_transfer=False)


def tx(nonce: int, *, gas: int = 8_000_000, is_self_transfer: bool = False) -> PendingTx:
    version = SignedVersion(
        nonce.to_bytes(32, "big"), bytes(100_000), max_fee=10, max_tip=1, is_self_transfer=is_self_transfer
    )
    return PendingTx(nonce, nonce, b"\x01" * 20, gas, [version], is_unsent=True)


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
    assert PendingTxs([tx(1), tx(2)]).max_cost == 2 * 8_000_000 * 10


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


def account(*txs: PendingTx) -> RelayerAccount:
    one = RelayerAccount(1, Wallet(b"\x01" * 32), PendingTxs(txs), PendingTxs())
    one.tx_limits.block_gas_limit = 60_000_000
    return one


def note(relayer_account: RelayerAccount, now: float, **outcomes: SendResult) -> None:
    pending = {f"tx{one.nonce}": one for one in relayer_account.pending_txs}
    apply_sent_versions(
        relayer_account,
        [SentVersion(pending[name], pending[name].latest, (outcome,)) for name, outcome in outcomes.items()],
        now,
    )


@pytest.mark.parametrize("outcome", [SendResult.TOO_MUCH_GAS, SendResult.OVERSIZED, SendResult.UNSENDABLE])
def test_conclusive_error_gives_bytes_up_immediately(outcome: SendResult) -> None:
    one = tx(1)
    note(account(one), 0.0, tx1=outcome)
    assert one.is_unsendable


def test_size_refusal_shrinks_transactions_for_a_while() -> None:
    relayer_account = account(tx(1), tx(2))
    note(relayer_account, 0.0, tx1=SendResult.TOO_MUCH_GAS, tx2=SendResult.OVERSIZED)
    lowered, restored = relayer_account.tx_limits.limits_at(1.0), relayer_account.tx_limits.limits_at(601.0)
    assert (lowered.gas, lowered.bytes) == (4_000_000, 50_000)
    assert (restored.gas, restored.bytes) == (TX_GAS_CAP, MAX_TX_BYTES)


@pytest.mark.parametrize(
    "outcome",
    [
        SendResult.NO_ANSWER,
        SendResult.NONCE_USED,
        SendResult.UNDERPRICED,
        SendResult.NOT_SERVED,
        SendResult.RATE_LIMITED,
        SendResult.REJECTED,
    ],
)
def test_other_errors_keep_the_bytes(outcome: SendResult) -> None:
    one = tx(1)
    relayer_account = account(one, tx(2))
    for n in range(500):
        relayer_account.head_number = n
        note(relayer_account, 5.0 * n, tx1=outcome, tx2=SendResult.ACCEPTED)
    assert not one.is_unsendable


@pytest.mark.parametrize(
    "outcome", [SendResult.NO_ANSWER, SendResult.NOT_SERVED, SendResult.RATE_LIMITED, SendResult.REFUSED_FOR_NOW]
)
def test_turn_does_not_begin_before_a_verdict(outcome: SendResult) -> None:
    one = tx(1)
    note(account(one), 3.0, tx1=outcome)
    assert one.turn_started_at is None


def test_turn_begins_with_a_refusal_and_again_when_accepted() -> None:
    one = tx(1)
    relayer_account = account(one)
    note(relayer_account, 3.0, tx1=SendResult.REJECTED)
    note(relayer_account, 4.0, tx1=SendResult.REJECTED)
    assert (one.turn_started_at, one.is_accepted) == (3.0, False)
    note(relayer_account, 5.0, tx1=SendResult.ACCEPTED)
    note(relayer_account, 6.0, tx1=SendResult.REJECTED)
    assert (one.turn_started_at, one.is_accepted) == (5.0, True)


def test_a_self_transfer_is_not_given_up() -> None:
    one = tx(1, is_self_transfer=True)
    note(account(one), 0.0, tx1=SendResult.TOO_MUCH_GAS)
    assert not one.is_unsendable


@pytest.mark.parametrize("outcome", [SendResult.NOT_SERVED, SendResult.RATE_LIMITED])
def test_queue_waits_while_the_endpoint_turns_bytes_away(outcome: SendResult) -> None:
    relayer_account = account(tx(1))
    assert relayer_account.has_unsent
    note(relayer_account, 0.0, tx1=outcome)
    assert relayer_account.has_unsent
    note(relayer_account, 1.0, tx1=SendResult.REJECTED)
    assert not relayer_account.has_unsent


def test_accepted_self_transfer_keeps_the_refusal() -> None:
    """The caller must not conclude that a node may have the replaced bytes."""
    one = tx(1)
    relayer_account = account(one)
    note(relayer_account, 0.0, tx1=SendResult.TOO_MUCH_GAS)
    self_transfer = SignedVersion(b"\x09" * 32, b"", max_fee=12, max_tip=2, is_self_transfer=True)
    relayer_account.pending_txs.replace(one, self_transfer)
    note(relayer_account, 1.0, tx1=SendResult.ACCEPTED)
    assert (one.is_unsent, one.refusal_code) == (False, "rpc_internal")


@pytest.mark.parametrize("outcome", [each for each in SendResult if each is not SendResult.ACCEPTED])
def test_failed_sending_is_retried_soon(outcome: SendResult) -> None:
    one = tx(1)
    note(account(one), 50.0, tx1=outcome)
    assert (one.next_send_at, one.failed_broadcasts) == (50.25, 1)
    assert one.is_underpriced is (outcome is SendResult.UNDERPRICED)


def test_given_up_bytes_are_counted_once_by_reason() -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("coordinatord_relay_replacements_total", {"reason": "oversized"}) or 0.0

    one, before = tx(1), counted()
    relayer_account = account(one)
    note(relayer_account, 0.0, tx1=SendResult.OVERSIZED)
    note(relayer_account, 1.0, tx1=SendResult.OVERSIZED)
    assert (one.is_unsendable, counted() - before) == (True, 1.0)


def test_bytes_are_unsent_if_no_endpoint_served_them() -> None:
    kept, unheard = tx(1), tx(2)
    relayer_account = account(kept, unheard)
    note(relayer_account, 0.0, tx1=SendResult.NOT_SERVED, tx2=SendResult.NO_ANSWER)
    note(relayer_account, 1.0, tx1=SendResult.NOT_SERVED, tx2=SendResult.NOT_SERVED)
    assert (kept.is_unsent, unheard.is_unsent) == (True, False)
