"""Signed versions of a transaction: their bytes, how each is stored, and signers that fail."""

from collections.abc import Sequence
from typing import Any, Final

import attrs
import pytest

from common.inclusion import rlp
from common.secp256k1 import Wallet
from common.transactions import Transaction
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer import queue_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.coalesce import PlannedTx
from coordinatord.chain.relayer.fees import NO_CEILING, Fee, FeeCeiling, FeeMarket
from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs, SignedVersion
from coordinatord.chain.relayer.signers import ExternalSigner, SignerUnavailable, WalletSigner, sign_in_order
from coordinatord.chain.relayer.signing import sign_planned, sign_replacement, sign_self_transfer
from coordinatord.chain.relayer.tx_size import BASE_GAS
from coordinatord.chain.signing.signers import SigningFailed

GWEI: Final = 10**9
WALLET: Final = Wallet(b"\x01" * 32)
TARGET, CALLDATA = b"\x11" * 20, b"calldata"
GAS: Final = 100_000


def account() -> RelayerAccount:
    market = FeeMarket(base_fee=50 * GWEI, tip=GWEI)
    return RelayerAccount(31337, WalletSigner(WALLET), PendingTxs([]), PendingTxs([]), fee_market=market)


def pending(*, is_self_transfer: bool) -> PendingTx:
    version = SignedVersion(b"\x02" * 32, b"\x02", max_fee=2 * GWEI, max_tip=GWEI, is_self_transfer=is_self_transfer)
    return PendingTx(1, 7, TARGET, BASE_GAS if is_self_transfer else GAS, [version], CALLDATA)


def carried(version: SignedVersion | None) -> tuple[bool, int, bytes, bytes]:
    """Return (fills, gas, to, data) of the record, and check that the bytes contain the same."""
    assert version is not None
    fields = rlp.decode_list(version.signed_bytes[1:])
    _chain, _nonce, _tip, _cap, gas, to, _value, data = fields[:8]
    assert isinstance(gas, bytes)
    assert isinstance(to, bytes)
    assert isinstance(data, bytes)
    return version.is_self_transfer, int.from_bytes(gas, "big"), to, data


async def test_raised_fee_keeps_the_relay_unchanged() -> None:
    relayer_account = account()
    version = await sign_replacement(relayer_account, pending(is_self_transfer=False))
    assert carried(version) == (False, GAS, TARGET, CALLDATA)


async def test_self_transfer_stays_one_when_its_fee_is_raised() -> None:
    """The relay went back to the queue. The original bytes would execute it a second time."""
    relayer_account = account()
    version = await sign_replacement(relayer_account, pending(is_self_transfer=True))
    assert carried(version) == (True, BASE_GAS, relayer_account.address, b"")


async def test_unsendable_bytes_become_a_self_transfer_in_place() -> None:
    relayer_account, tx = account(), pending(is_self_transfer=False)
    tx.is_unsendable = True
    assert carried(await sign_replacement(relayer_account, tx)) == (True, BASE_GAS, relayer_account.address, b"")


async def test_version_records_its_fees_and_transfers_nothing() -> None:
    relayer_account = account()
    version = await sign_replacement(relayer_account, pending(is_self_transfer=False))
    assert version is not None
    chain, nonce, tip, cap, _gas, _to, value, *_ = rlp.decode_list(version.signed_bytes[1:])
    numbers = [int.from_bytes(field, "big") for field in (chain, nonce, tip, cap, value) if isinstance(field, bytes)]
    assert numbers == [31337, 7, version.max_tip, version.max_fee, 0]
    assert (version.max_fee, version.max_tip) == (101 * GWEI, max(GWEI + GWEI // 8, version.max_tip))


async def test_transaction_that_the_market_still_pays_is_left_as_it_is() -> None:
    relayer_account = account()
    relayer_account.fee_market = FeeMarket(base_fee=GWEI, tip=GWEI)
    tx = pending(is_self_transfer=False)
    assert await sign_replacement(relayer_account, tx) is None
    tx.is_underpriced = True  # unless a node reported the fee as too low
    assert await sign_replacement(relayer_account, tx) is not None


async def test_ceiling_limits_repricing_but_not_self_transfers() -> None:
    relayer_account, tx = account(), pending(is_self_transfer=False)
    relayer_account.fee_ceiling = CEILING
    assert await sign_replacement(relayer_account, tx) is None
    tx.is_unsendable = True
    version = await sign_replacement(relayer_account, tx)
    assert version is not None
    assert carried(version) == (True, BASE_GAS, relayer_account.address, b"")
    assert tx.fee.max_fee < version.max_fee < 4 * GWEI


CEILING: Final = FeeCeiling(3 * GWEI)


@attrs.define
class Tables:
    """Records writes to the outbox. The next nonce is one above the highest that was assigned."""

    next: int | None = None
    inserted: list[PendingTx] = attrs.field(factory=list)
    foreign: list[range] = attrs.field(factory=list)
    inserts: int = 0
    bound: list[tuple[int, int, int | None]] = attrs.field(factory=list)
    filled: list[tuple[int, int, SignedVersion]] = attrs.field(factory=list)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    tables = Tables()

    async def read_next_nonce(connection: object, chain_id: int, address: bytes) -> int | None:
        assert (chain_id, address) == (31337, account().address)
        return tables.next

    async def insert_transactions(connection: object, chain_id: int, address: bytes, txs: Sequence[PendingTx]) -> None:
        assert (chain_id, address) == (31337, account().address)
        tables.inserted += txs
        tables.inserts += 1
        for place, tx in enumerate(txs):
            tx.id = 100 + place

    async def insert_foreign_nonces(connection: object, chain_id: int, address: bytes, nonces: range) -> None:
        assert (chain_id, address) == (31337, account().address)
        tables.foreign.append(nonces)

    async def mark_signed(connection: object, bound: Sequence[tuple[int, int, int | None]]) -> None:
        tables.bound += bound

    async def turn_into_self_transfer(connection: object, fill: PendingTx) -> None:
        tables.filled.append((fill.id, fill.gas_limit, fill.latest))

    monkeypatch.setattr(transactions_sql, "read_next_nonce", read_next_nonce)
    monkeypatch.setattr(transactions_sql, "insert_transactions", insert_transactions)
    monkeypatch.setattr(transactions_sql, "insert_foreign_nonces", insert_foreign_nonces)
    monkeypatch.setattr(transactions_sql, "turn_into_self_transfer", turn_into_self_transfer)
    monkeypatch.setattr(queue_sql, "mark_signed", mark_signed)
    return tables


def planned(*relays: int) -> PlannedTx:
    riding: Any = tuple(attrs.make_class("Relay", ["id"])(relay) for relay in relays)
    rank: Any = None
    first = relays[0]
    return PlannedTx(bytes([first]) * 20, bytes([0, first]), GAS + first, rank, riding, expected_gas=len(relays))


CONNECTION: Final[Any] = None


async def test_plans_get_consecutive_nonces_and_are_stored(tables: Tables) -> None:
    relayer_account, tables.next = account(), 5
    relayer_account.nonce_floor = 4
    pending, failure = await sign_planned(CONNECTION, relayer_account, [planned(1), planned(2, 3)])
    assert failure is None
    assert [(tx.nonce, tx.target, tx.calldata, tx.gas_limit) for tx in tables.inserted] == [
        (5, b"\x01" * 20, b"\x00\x01", GAS + 1),
        (6, b"\x02" * 20, b"\x00\x02", GAS + 2),
    ]
    assert [carried(tx.latest) for tx in tables.inserted] == [
        (False, tx.gas_limit, tx.target, tx.calldata) for tx in tables.inserted
    ]
    assert [rlp.decode_list(tx.latest.signed_bytes[1:])[1] for tx in tables.inserted] == [b"\x05", b"\x06"]
    assert tables.bound == [(1, 100, None), (2, 101, 0), (3, 101, 1)]
    assert tables.foreign == []
    assert [(tx.id, tx.nonce, tx.target, tx.gas_limit, tx.is_unsent, tx.expected_gas) for tx in pending] == [
        (100, 5, b"\x01" * 20, GAS + 1, True, 1),
        (101, 6, b"\x02" * 20, GAS + 2, True, 2),
    ]
    assert pending == tables.inserted


@pytest.mark.parametrize(
    ("floor", "given_out", "first", "foreign"),
    [(9, None, 9, []), (9, 9, 9, []), (9, 7, 9, [range(7, 9)]), (0, None, 0, [])],
)
async def test_foreign_nonces_are_recorded_and_skipped(
    floor: int, given_out: int | None, first: int, foreign: list[range], tables: Tables
) -> None:
    relayer_account, tables.next = account(), given_out
    relayer_account.nonce_floor = floor
    await sign_planned(CONNECTION, relayer_account, [planned(1)])
    assert ([tx.nonce for tx in tables.inserted], tables.foreign) == ([first], foreign)


async def test_nothing_is_signed_behind_a_false_count_of_used_nonces(tables: Tables) -> None:
    tables.next, relayer_account = 6, account()
    relayer_account.nonce_floor = 1_000_000
    with pytest.raises(Retryable, match="the node counts"):
        await sign_planned(CONNECTION, relayer_account, [planned(1)])
    assert tables.foreign == []


async def test_nonces_start_behind_unknown_bytes_in_a_pool(tables: Tables) -> None:
    relayer_account = account()
    relayer_account.nonce_floor, relayer_account.pool_nonces_end = 5, 7
    await sign_planned(CONNECTION, relayer_account, [planned(1)])
    assert [tx.nonce for tx in tables.inserted] == [7]


async def test_fee_of_new_bytes_is_the_markets_below_the_ceiling(tables: Tables) -> None:
    relayer_account = account()
    await sign_planned(CONNECTION, relayer_account, [planned(1)])
    relayer_account.fee_ceiling = CEILING
    await sign_planned(CONNECTION, relayer_account, [planned(1)])
    await sign_self_transfer(CONNECTION, relayer_account, 9, None)
    assert [(tx.latest.max_fee, tx.latest.max_tip) for tx in tables.inserted] == [
        (101 * GWEI, GWEI),
        *[attrs.astuple(CEILING.limit_fee(Fee(101 * GWEI, GWEI)))] * 2,
    ]


@pytest.mark.parametrize(("refuses", "stored"), [({1}, [0]), ({0}, []), ({0, 1}, [])])
async def test_relays_after_a_failed_signature_stay_queued(
    refuses: set[int], stored: list[int], tables: Tables
) -> None:
    relayer_account = attrs.evolve(account(), signer=Program(refuses).signer())
    pending, failure = await sign_planned(CONNECTION, relayer_account, [planned(1), planned(2)])
    assert isinstance(failure, SignerUnavailable)
    assert [tx.nonce for tx in pending] == [tx.nonce for tx in tables.inserted] == stored
    assert [relay for relay, *_ in tables.bound] == [1] * len(stored)
    assert tables.inserts == len(stored)


async def test_unstored_nonce_is_filled_by_a_self_transfer(tables: Tables) -> None:
    relayer_account = account()
    fill = await sign_self_transfer(CONNECTION, relayer_account, 9, None)
    [stored] = tables.inserted
    assert fill is stored
    assert (fill.id, fill.nonce, fill.gas_limit) == (100, 9, BASE_GAS)
    assert (fill.target, fill.calldata) == (relayer_account.address, b"")
    assert [carried(version) for version in fill.versions] == [(True, BASE_GAS, relayer_account.address, b"")]


@pytest.mark.parametrize("known", [True, False])
async def test_lost_nonce_is_filled_beside_older_versions(known: bool, tables: Tables) -> None:
    relayer_account, lost = account(), pending(is_self_transfer=False)
    if known:
        relayer_account.lost_txs.add(lost)
    fill = await sign_self_transfer(CONNECTION, relayer_account, 7, 1)
    [(tx_id, gas, version)] = tables.filled
    assert (tx_id, gas, carried(version)) == (1, BASE_GAS, (True, BASE_GAS, relayer_account.address, b""))
    assert (fill.id, fill.nonce, fill.target, fill.gas_limit) == (1, 7, relayer_account.address, BASE_GAS)
    assert fill.versions == [*(lost.versions if known else []), version]
    assert tables.inserted == []


async def test_self_transfer_that_was_lost_is_sent_again_as_it_is(tables: Tables) -> None:
    relayer_account, lost = account(), pending(is_self_transfer=False)
    lost.versions += pending(is_self_transfer=True).versions
    relayer_account.lost_txs.add(lost)
    fill = await sign_self_transfer(CONNECTION, relayer_account, 7, 1)
    assert fill.versions == lost.versions
    assert tables.filled == [(1, BASE_GAS, lost.latest)]
    assert fill.versions is not lost.versions
    assert relayer_account.fee_ceiling is NO_CEILING


def transaction(nonce: int) -> Transaction:
    return Transaction(1, nonce, 1, 2, 21_000, bytes(20), 0, b"")


@attrs.define
class Program:
    """A signer that signs every nonce except those in `refuses`."""

    refuses: set[int] = attrs.field(factory=set)
    asked: list[int] = attrs.field(factory=list)
    now: float = 100.0

    def clock(self) -> float:
        return self.now

    async def __call__(self, asked: Transaction) -> bytes:
        self.asked.append(asked.nonce)
        if asked.nonce in self.refuses:
            raise SigningFailed("it is locked")
        return asked.sign(WALLET).raw

    def signer(self) -> ExternalSigner:
        return ExternalSigner(WALLET.address, self, 1, self.clock)


async def test_signatures_before_the_first_failure_count() -> None:
    program = Program(refuses={11})
    wanted = [transaction(nonce) for nonce in range(30)]
    signed, failure = await sign_in_order(program.signer(), wanted)
    assert [one.raw for one in signed] == [one.sign(WALLET).raw for one in wanted[:11]]
    assert isinstance(failure, SignerUnavailable)
    assert max(program.asked) < 16  # no requests follow the round that failed
    assert await sign_in_order(WalletSigner(WALLET), wanted) == ([one.sign(WALLET) for one in wanted], None)


async def test_failed_signer_pauses_longer_each_time() -> None:
    program = Program(refuses={0})
    signer = program.signer()
    rests = []
    for _ in range(8):
        began = program.now
        with pytest.raises(SignerUnavailable, match="it is locked"):
            await signer.sign(transaction(0))
        asked = len(program.asked)
        while True:
            program.now += 0.5
            try:
                await signer.sign(transaction(1))
            except SignerUnavailable:
                assert len(program.asked) == asked  # no requests during the pause
            else:
                break
        rests.append(program.now - began)
        signer._failures = len(rests)  # another failure: a success would reset the pauses
    assert rests == [0.5, 1, 2, 4, 8, 16, 16, 16]


async def test_signature_resets_earlier_failures() -> None:
    program = Program(refuses={0})
    signer = program.signer()
    for _ in range(3):
        with pytest.raises(SignerUnavailable):
            await signer.sign(transaction(0))
        program.now += 60
        await signer.sign(transaction(1))
    assert program.asked == [0, 1] * 3
