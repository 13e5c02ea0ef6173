"""What outcomes of sending lead to: bytes that are given up, and an endpoint that counts as serving nothing."""

import pytest

from common.secp256k1 import Wallet
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.broadcast import Sending, Sent, note_sendings
from coordinatord.chain.relayer.coalesce import MOST_BYTES, TX_GAS_CAP
from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs
from coordinatord.chain.relayer.transactions_sql import Version


def tx(nonce: int, *, gas: int = 8_000_000, fills: bool = False) -> PendingTx:
    version = Version(nonce.to_bytes(32, "big"), bytes(100_000), max_fee=10, max_tip=1, fills=fills)
    return PendingTx(nonce, nonce, b"\x01" * 20, gas, [version], unsent=True)


def account(*txs: PendingTx) -> RelayerAccount:
    one = RelayerAccount(1, Wallet(b"\x01" * 32), PendingTxs(txs), PendingTxs())
    one.room.block_gas_limit = 60_000_000
    return one


def note(of: RelayerAccount, now: float, **outcomes: Sent) -> None:
    pending = {f"tx{one.nonce}": one for one in of.pending}
    note_sendings(
        of, [Sending(pending[name], pending[name].latest, outcome) for name, outcome in outcomes.items()], now
    )


@pytest.mark.parametrize("outcome", [Sent.TOO_MUCH_GAS, Sent.OVERSIZED, Sent.UNSENDABLE])
def test_words_that_say_it_all_give_bytes_up_at_once(outcome: Sent) -> None:
    one = tx(1)
    note(account(one), 0.0, tx1=outcome)
    assert one.unsendable


def test_after_a_refusal_for_size_transactions_are_smaller_for_a_while() -> None:
    of = account(tx(1), tx(2))
    note(of, 0.0, tx1=Sent.TOO_MUCH_GAS, tx2=Sent.OVERSIZED)
    assert (of.room.at(1.0).gas, of.room.at(1.0).bytes) == (4_000_000, 50_000)
    assert (of.room.at(601.0).gas, of.room.at(601.0).bytes) == (TX_GAS_CAP, MOST_BYTES)


def test_any_words_give_bytes_up_when_the_node_takes_others_meanwhile() -> None:
    one = tx(1)
    of = account(one, tx(2))
    for n in range(5):
        assert not one.unsendable
        note(of, float(n), tx1=Sent.REJECTED, tx2=Sent.TAKEN)
    assert one.unsendable


def test_any_words_give_bytes_up_when_blocks_go_by_meanwhile() -> None:
    one = tx(1)
    of = account(one)
    for n in range(5):
        of.head = n
        note(of, 4.0 * n, tx1=Sent.REJECTED)
    assert not one.unsendable
    note(of, 21.0, tx1=Sent.REJECTED)
    assert one.unsendable


@pytest.mark.parametrize("outcome", [Sent.LATER, Sent.NONCE_USED, Sent.UNDERPRICED, Sent.NOT_SERVED])
def test_nothing_else_ever_gives_bytes_up(outcome: Sent) -> None:
    one = tx(1)
    of = account(one, tx(2))
    for n in range(500):
        of.head = n
        note(of, 5.0 * n, tx1=outcome, tx2=Sent.TAKEN)
    assert not one.unsendable


def test_a_node_that_stands_still_and_takes_nothing_proves_nothing() -> None:
    one = tx(1)
    of = account(one)
    for n in range(500):
        note(of, 5.0 * n, tx1=Sent.REJECTED)
    assert not one.unsendable


def test_bytes_that_were_taken_in_between_start_anew() -> None:
    one = tx(1)
    of = account(one, tx(2))
    for n in range(4):
        note(of, float(n), tx1=Sent.REJECTED, tx2=Sent.TAKEN)
    note(of, 5.0, tx1=Sent.TAKEN)
    note(of, 6.0, tx1=Sent.REJECTED, tx2=Sent.TAKEN)
    assert not one.unsendable


def test_a_self_transfer_is_not_given_up() -> None:
    one = tx(1, fills=True)
    note(account(one), 0.0, tx1=Sent.TOO_MUCH_GAS)
    assert not one.unsendable


def test_an_endpoint_that_serves_no_round_of_three_refuses_until_it_takes_one() -> None:
    of = account(tx(1), tx(2))
    for _ in range(2):
        note(of, 0.0, tx1=Sent.NOT_SERVED, tx2=Sent.NOT_SERVED)
    assert not of.endpoint_refuses
    note(of, 1.0, tx1=Sent.NOT_SERVED)
    assert of.endpoint_refuses
    note(of, 2.0, tx1=Sent.TAKEN)
    assert not of.endpoint_refuses


def test_rounds_that_say_nothing_of_the_endpoint_are_not_counted() -> None:
    """Nobody knows, or some of them: neither is a refusal to serve, nor the end of one."""
    of = account(tx(1), tx(2))
    note(of, 0.0, tx1=Sent.LATER, tx2=Sent.LATER)
    note(of, 0.0)
    assert of.unserved_rounds == 0
    note(of, 0.0, tx1=Sent.NOT_SERVED, tx2=Sent.LATER)
    note(of, 0.0, tx1=Sent.NOT_SERVED, tx2=Sent.NOT_SERVED)
    note(of, 0.0, tx1=Sent.LATER)
    assert of.unserved_rounds == 2
    note(of, 0.0, tx1=Sent.REJECTED, tx2=Sent.NOT_SERVED)
    assert of.unserved_rounds == 0


@pytest.mark.parametrize("outcome", [each for each in Sent if each is not Sent.TAKEN])
def test_what_nobody_took_is_due_again_soon_and_needs_more_only_where_it_offers_too_little(outcome: Sent) -> None:
    one = tx(1)
    note(account(one), 50.0, tx1=outcome)
    assert (one.due, one.failures) == (50.25, 1)
    assert one.underpriced is (outcome is Sent.UNDERPRICED)


def test_what_is_given_up_is_counted_once_by_its_reason() -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("coordinatord_relay_given_up_total", {"reason": "oversized"}) or 0.0

    one, before = tx(1), counted()
    of = account(one)
    note(of, 0.0, tx1=Sent.OVERSIZED)
    note(of, 1.0, tx1=Sent.OVERSIZED)
    assert (one.unsendable, counted() - before) == (True, 1.0)


def test_one_of_many_nodes_that_serves_sending_is_enough() -> None:
    of = account(tx(1), tx(2))
    for _ in range(9):
        note(of, 0.0, tx1=Sent.NOT_SERVED, tx2=Sent.TAKEN)
    assert not of.endpoint_refuses


def test_only_bytes_that_every_sending_refused_to_serve_are_with_nobody() -> None:
    kept, unheard = tx(1), tx(2)
    of = account(kept, unheard)
    note(of, 0.0, tx1=Sent.NOT_SERVED, tx2=Sent.LATER)
    note(of, 1.0, tx1=Sent.NOT_SERVED, tx2=Sent.NOT_SERVED)
    assert (kept.unsent, unheard.unsent) == (True, False)
