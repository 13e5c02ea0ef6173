"""Repair of nonces: which transactions are given up, found again, replaced or repriced, and when one node alone is
not believed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import pytest

from common.secp256k1 import Wallet
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer import blocks, repair, results_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import HeadBlock
from coordinatord.chain.relayer.fees import FeeCeiling, FeeMarket
from coordinatord.chain.relayer.in_flight import MAX_RECEIPT_LAG_S, PendingTx, PendingTxs, SignedVersion
from coordinatord.chain.relayer.receipts import TxReceipt
from coordinatord.chain.relayer.repair import MAX_PASSED_TURNS, raise_fees, repair_nonces, revive_unmined
from coordinatord.chain.relayer.signers import WalletSigner

HEAD: Final = 50
CHAIN: Final = 31337
SIGNER: Final = WalletSigner(Wallet(b"\x01" * 32))
NOW: Final = 10_000.0
AN_HOUR: Final = 3600.0


def version_of(name: int, *, is_self_transfer: bool = False, max_fee: int = 100) -> SignedVersion:
    return SignedVersion(
        name.to_bytes(32, "big"), b"\x02", max_fee=max_fee, max_tip=2, is_self_transfer=is_self_transfer
    )


def tx(nonce: int, *versions: SignedVersion) -> PendingTx:
    """Return a transaction. Its id is its nonce plus one hundred."""
    return PendingTx(100 + nonce, nonce, b"\x11" * 20, 1000, list(versions) or [version_of(nonce)])


def receipt(name: int, block: int = HEAD) -> TxReceipt:
    return TxReceipt(name.to_bytes(32, "big"), block, b"\x0b" * 32, True, 1000, ())


def head(number: int, name: bytes = b"\x0b" * 32) -> HeadBlock:
    return HeadBlock(number, "0x" + name.hex(), "0x", 0, 0, ())


@attrs.define
class Node:
    """One node of a chain that other nodes serve as well."""

    receipts: list[TxReceipt] = attrs.field(factory=list)
    count: int = 0
    blocks: dict[int, HeadBlock] = attrs.field(factory=dict)
    other_nodes: list["Node"] = attrs.field(factory=list)
    asked: list[Sequence[bytes]] = attrs.field(factory=list)
    pool: int = 0

    async def call(self, method: str, *parameters: str) -> str:
        assert (method, parameters) == ("eth_getTransactionCount", ("0x" + SIGNER.address.hex(), "pending"))
        return hex(self.pool)


@attrs.define
class Tables:
    """In-memory rows of the account's transactions. Records the writes."""

    next: int | None = None
    stored: list[PendingTx] = attrs.field(factory=list)
    blocks: list[tuple[int, bytes]] = attrs.field(factory=list)
    gaps: dict[int, int | None] = attrs.field(factory=dict)
    unmade: list[Sequence[bytes]] = attrs.field(factory=list)
    lost: list[int] = attrs.field(factory=list)
    resolved: list[TxReceipt] = attrs.field(factory=list)
    versions: list[tuple[int, SignedVersion]] = attrs.field(factory=list)
    unexplained: list[int] = attrs.field(factory=list)
    sought: list[set[int]] = attrs.field(factory=list)
    remembered: set[int] = attrs.field(factory=set)  # nonces that a block used with another version's bytes
    transactions: int = 0
    now: float = NOW

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Tables"]:
        self.transactions += 1
        yield self

    def current_time(self) -> float:
        return self.now


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    def assert_account(*account: Any) -> None:
        assert account == (CHAIN, SIGNER.address)

    async def read_next_nonce(tables: Tables, *account: Any) -> int | None:
        assert_account(*account)
        return tables.next

    async def read_pending(tables: Tables, *account: Any) -> list[PendingTx]:
        assert_account(*account)
        return tables.stored

    async def unmine_blocks(tables: Tables, chain: int, address: bytes, vanished: Sequence[bytes]) -> int:
        assert_account(chain, address)
        tables.unmade.append(vanished)
        return len(vanished)

    async def find_blocks_of_nonces(
        tables: Tables, chain: int, address: bytes, suspects: Sequence[int]
    ) -> list[tuple[int, bytes]]:
        assert_account(chain, address)
        return tables.blocks if suspects else []

    async def find_nonce_gaps(tables: Tables, chain: int, address: bytes, suspects: Sequence[int]) -> list[Any]:
        assert_account(chain, address)
        return [(nonce, tables.gaps[nonce]) for nonce in suspects if nonce in tables.gaps]

    async def find_unexplained_nonces(tables: Tables, chain: int, address: bytes, below: int) -> list[int]:
        assert_account(chain, address)
        return [nonce for nonce in tables.unexplained if nonce < below]

    async def mark_lost(tables: Tables, ids: Sequence[int]) -> None:
        tables.lost += ids

    async def add_versions(tables: Tables, versions: Sequence[tuple[int, SignedVersion]]) -> None:
        tables.versions += versions

    async def sign_self_transfer(tables: Tables, account: RelayerAccount, nonce: int, lost_id: int | None) -> PendingTx:
        return tx(nonce, version_of(nonce, is_self_transfer=True))

    async def resolve_receipts(
        tables: Tables, rpc: Node, account: RelayerAccount, receipts: Sequence[TxReceipt]
    ) -> None:
        tables.resolved += receipts

    async def read_receipts(rpc: Node, hashes: Sequence[bytes]) -> list[TxReceipt]:
        return [receipt for receipt in rpc.receipts if receipt.tx_hash in hashes]

    async def read_receipts_and_count(rpc: Node, address: bytes, hashes: Sequence[bytes]) -> tuple[Any, int]:
        assert_account(CHAIN, address)
        rpc.asked.append(hashes)
        return await read_receipts(rpc, hashes), rpc.count

    async def adopt_forgotten_transactions(tables: Tables, *_: object, nonces: set[int], **__: object) -> set[int]:
        tables.sought.append(nonces)
        return tables.remembered & nonces

    async def read_blocks_by_number(rpc: Node, numbers: Sequence[int]) -> list[HeadBlock | None]:
        return [rpc.blocks.get(number) for number in numbers]

    fakes: dict[Any, list[Any]] = {
        transactions_sql: [read_next_nonce, read_pending, find_blocks_of_nonces, find_nonce_gaps, add_versions],
        results_sql: [unmine_blocks, mark_lost],
        repair: [sign_self_transfer, resolve_receipts, read_receipts, read_receipts_and_count],
        blocks: [read_blocks_by_number],
    }
    fakes[transactions_sql].append(find_unexplained_nonces)
    fakes[repair].append(adopt_forgotten_transactions)
    for module, functions in fakes.items():
        for function in functions:
            monkeypatch.setattr(module, function.__name__, function)
    tables = Tables()
    monkeypatch.setattr(repair, "anyio", tables)
    return tables


def account(floor: int, *pending: PendingTx, lost: Sequence[PendingTx] = ()) -> RelayerAccount:
    market = FeeMarket(base_fee=10, tip=2)
    return RelayerAccount(CHAIN, SIGNER, PendingTxs(pending), PendingTxs(lost), nonce_floor=floor, fee_market=market)


async def repaired(tables: Any, node: Any, relayer_account: RelayerAccount) -> bool:
    """Return True when a nonce was given up, revived, or filled."""
    before = nonces(relayer_account.pending_txs), len(tables.lost)
    await repair_nonces(tables, node, relayer_account, head(HEAD))
    return (nonces(relayer_account.pending_txs), len(tables.lost)) != before


def nonces(txs: PendingTxs) -> list[int]:
    return [each.nonce for each in txs]


async def missing_for_long(tables: Tables, node: Node, relayer_account: RelayerAccount) -> bool:
    """Repair twice, far enough apart that a node has its receipts."""
    assert not await repaired(tables, node, relayer_account)
    tables.now += MAX_RECEIPT_LAG_S
    return await repaired(tables, node, relayer_account)


async def test_healthy_account_needs_no_node_and_no_write(tables: Tables) -> None:
    tables.next, node = 7, Node()
    assert not await repaired(tables, node, account(5, tx(5), tx(6)))
    assert (node.asked, tables.transactions) == ([], 1)


async def test_foreign_nonce_is_given_up_without_a_receipt(tables: Tables) -> None:
    tables.next, node = 8, Node(count=6)
    relayer_account = account(6, tx(5), tx(6), tx(7))
    assert await missing_for_long(tables, node, relayer_account)
    assert (nonces(relayer_account.pending_txs), nonces(relayer_account.lost_txs), tables.lost) == ([6, 7], [5], [105])
    assert node.asked == [[version_of(5).hash]] * 2


async def test_unknown_used_nonces_are_searched_once(tables: Tables) -> None:
    tables.next, tables.unexplained, node = 6, [3, 5], Node()
    relayer_account = account(8)
    await repaired(tables, node, relayer_account)
    assert tables.sought == [{3, 5, 6, 7}]
    relayer_account.searched_nonces = {3, 5, 6, 7}
    await repaired(tables, node, relayer_account)
    assert tables.sought == [{3, 5, 6, 7}]


@pytest.mark.parametrize(("stored_next", "floor"), [(None, 1 << 60), (6, 1_000_000)])
async def test_false_count_of_used_nonces_is_refused(stored_next: int | None, floor: int, tables: Tables) -> None:
    tables.next = stored_next
    with pytest.raises(Retryable, match="the node counts"):
        await repaired(tables, Node(), account(floor))
    assert tables.sought == []


async def test_nonce_that_a_forgotten_version_used_is_not_given_up(tables: Tables) -> None:
    tables.next, tables.remembered, node = 7, {5}, Node(count=7)
    relayer_account = account(7, tx(5), tx(6))
    assert await missing_for_long(tables, node, relayer_account)
    assert (nonces(relayer_account.pending_txs), tables.lost) == ([5], [106])


async def test_bytes_in_the_pool_of_another_node_are_not_outbid(tables: Tables) -> None:
    tables.next, tables.gaps, node = 7, {5: None, 6: None}, Node(other_nodes=[Node(pool=6)])
    relayer_account = account(5)
    relayer_account.pool_nonces_end = 5
    assert await repaired(tables, node, relayer_account)
    assert nonces(relayer_account.pending_txs) == [6]


async def test_nonce_uncounted_by_the_receipts_node_is_kept(tables: Tables) -> None:
    tables.next, node = 6, Node(count=5)
    relayer_account = account(6, tx(5))
    assert not await missing_for_long(tables, node, relayer_account)
    assert relayer_account.pending_txs.find_by_id(105) is not None
    assert tables.lost == []


async def test_mined_version_keeps_the_nonce_and_is_resolved(tables: Tables) -> None:
    tables.next = 8
    old, new = version_of(55), version_of(5)
    node = Node([receipt(55), receipt(6, HEAD + 1)], count=7)
    relayer_account = account(7, tx(5, old, new), tx(6), tx(7))
    assert not await missing_for_long(tables, node, relayer_account)
    assert tables.resolved == [receipt(55)] * 2  # the other receipt's block is later than the one read
    assert (nonces(relayer_account.pending_txs), tables.lost) == ([5, 6, 7], [])


async def test_missing_time_restarts_after_a_receipt(tables: Tables) -> None:
    tables.next, node = 8, Node([receipt(55)], count=6)
    relayer_account = account(6, tx(5, version_of(55), version_of(5)), tx(6), tx(7))
    for each in relayer_account.pending_txs:
        each.receipt_missing_since = NOW - 100
    assert not await repaired(tables, node, relayer_account)
    assert [each.receipt_missing_since for each in relayer_account.pending_txs] == [None, None, None]
    node.receipts = []
    assert not await repaired(tables, node, relayer_account)
    assert [each.receipt_missing_since for each in relayer_account.pending_txs] == [NOW, None, None]


async def test_at_most_thirty_two_used_nonces_are_examined_at_once(tables: Tables) -> None:
    tables.next, node = 40, Node(count=40)
    await repaired(tables, node, account(40, *(tx(nonce) for nonce in range(40))))
    assert [len(hashes) for hashes in node.asked] == [32]


@pytest.mark.parametrize(
    ("other", "lost"),
    [
        (Node(count=7), [5, 6]),
        (Node(count=6), []),  # the node counts nonce 6 as unused
        (Node([receipt(5)], count=7), []),
    ],
    ids=["agrees", "counts fewer", "has a receipt"],
)
async def test_nonce_is_given_up_only_if_all_nodes_agree(other: Node, lost: list[int], tables: Tables) -> None:
    tables.next, node = 7, Node(count=7, other_nodes=[Node(count=7), other])
    relayer_account = account(7, tx(5), tx(6))
    assert await missing_for_long(tables, node, relayer_account) is bool(lost)
    assert nonces(relayer_account.lost_txs) == lost
    assert nonces(relayer_account.pending_txs) == [nonce for nonce in (5, 6) if nonce not in lost]


async def test_gap_is_closed_while_nodes_differ_on_what_is_lost(tables: Tables) -> None:
    tables.next, tables.gaps, node = 7, {6: None}, Node(count=6, other_nodes=[Node()])
    relayer_account = account(6, tx(5))
    next(iter(relayer_account.pending_txs)).receipt_missing_since = NOW - MAX_RECEIPT_LAG_S
    assert await repaired(tables, node, relayer_account)
    assert (nonces(relayer_account.pending_txs), nonces(relayer_account.lost_txs)) == ([5, 6], [])


async def test_other_nodes_are_asked_only_about_what_seems_lost(tables: Tables) -> None:
    other = Node()
    tables.next, node = 6, Node(count=6, other_nodes=[other])
    await repaired(tables, node, account(6, tx(5)))
    assert other.asked == []


async def test_late_receipt_of_lost_bytes_is_resolved(tables: Tables) -> None:
    tables.next = 6
    node = Node([receipt(55), receipt(4, HEAD + 1)])
    await repaired(tables, node, account(6, lost=[tx(4), tx(5, version_of(55), version_of(5))]))
    assert tables.resolved == [receipt(55)]


async def test_lost_bytes_are_watched_for_an_hour(tables: Tables) -> None:
    tables.next, node = 6, Node()
    relayer_account = account(6, lost=[tx(5)])
    for later, watched in ((0.0, [5]), (AN_HOUR, [5]), (AN_HOUR + 1, [])):
        tables.now = NOW + later
        assert not await repaired(tables, node, relayer_account)
        assert nonces(relayer_account.lost_txs) == watched


async def test_gaps_are_filled_by_self_transfers(tables: Tables) -> None:
    tables.next, tables.gaps = 8, {5: 105, 6: None}
    relayer_account = account(5, tx(7), lost=[tx(5), tx(4)])
    assert await repaired(tables, Node(), relayer_account)
    assert [(each.nonce, each.latest.is_self_transfer) for each in relayer_account.pending_txs] == [
        (5, True),
        (6, True),
        (7, False),
    ]
    assert nonces(relayer_account.lost_txs) == [4]


async def test_mined_suspect_is_pending_again_after_a_reorg(tables: Tables) -> None:
    tables.next, tables.blocks = 6, [(40, b"\x0a" * 32)]
    tables.stored = [tx(5)]
    relayer_account = account(5)
    assert await repaired(tables, Node(), relayer_account)
    assert (nonces(relayer_account.pending_txs), tables.unmade) == ([5], [[b"\x0a" * 32]])


async def test_only_reorged_transactions_become_pending(tables: Any) -> None:
    stays, other, above = b"\x0a" * 32, b"\x0b" * 32, b"\x0c" * 32
    node: Any = Node(blocks={40: head(40, stays), 41: head(41, b"\xff" * 32)})
    relayer_account = account(5, tx(9))
    await revive_unmined(tables, node, relayer_account, [(40, stays)])
    assert (tables.transactions, nonces(relayer_account.pending_txs)) == (0, [9])
    await revive_unmined(tables, node, relayer_account, [(40, stays), (41, other), (42, above)])
    assert tables.unmade == [[other, above]]


async def raised(tables: Any, relayer_account: RelayerAccount) -> bool:
    """Return True when a new version was signed."""
    before = len(tables.versions)
    await raise_fees(tables, relayer_account, 60.0)
    return len(tables.versions) > before


def replaced_for_fee() -> float:
    return metrics.REGISTRY.get_sample_value("coordinatord_relay_replacements_total", {"reason": "fee"}) or 0.0


async def test_only_bytes_that_the_market_left_behind_are_made_dearer(tables: Tables) -> None:
    cheap, enough = tx(5, version_of(5, max_fee=5)), tx(6)
    relayer_account = account(5, cheap, enough)
    before = replaced_for_fee()
    assert await raised(tables, relayer_account)
    assert ([tx_id for tx_id, _ in tables.versions], len(cheap.versions), len(enough.versions)) == ([105], 2, 1)
    assert tables.versions == [(105, cheap.latest)]
    assert relayer_account.pending_txs.find_by_hash(cheap.latest.hash) is cheap
    assert replaced_for_fee() == before + 1
    assert not await raised(tables, relayer_account)
    assert tables.transactions == 1


@pytest.mark.parametrize(
    ("floor", "turn_started_at", "is_raised"),
    [(5, NOW - 60, True), (5, NOW - 59, False), (5, None, False), (4, NOW - 60, False)],
    ids=["passed", "not for long", "no answer", "not its turn"],
)
async def test_transaction_whose_turn_has_passed_is_repriced(
    floor: int, turn_started_at: float | None, is_raised: bool, tables: Tables
) -> None:
    relayer_account = account(floor, tx(5), tx(6))
    for each in relayer_account.pending_txs:
        each.turn_started_at, each.is_accepted = turn_started_at, True
    assert await raised(tables, relayer_account) is is_raised
    assert [tx_id for tx_id, _ in tables.versions] == ([105] if is_raised else [])


async def test_turn_starts_when_the_nonce_is_next(tables: Tables) -> None:
    relayer_account = account(5, tx(5))
    relayer_account.nonce_floor_since = NOW - 59
    next(iter(relayer_account.pending_txs)).record_verdict(NOW - 600, 1, accepted=True)
    assert not await raised(tables, relayer_account)
    assert not await raised(tables, account(5))


@pytest.mark.parametrize(
    ("accepted", "blocks", "is_self_transfer"),
    [(True, 1, True), (False, 0, True), (True, 0, False)],
    ids=["accepted", "refused", "chain makes no blocks"],
)
async def test_third_turn_ends_with_a_self_transfer(
    accepted: bool, blocks: int, is_self_transfer: bool, tables: Tables
) -> None:
    relayer_account = account(5, tx(5))
    (one,) = relayer_account.pending_txs
    for turn in range(MAX_PASSED_TURNS):
        one.record_verdict(tables.now, relayer_account.head_number, accepted=accepted)
        relayer_account.head_number += blocks
        tables.now += 60 * 2**turn
        assert await raised(tables, relayer_account)
    assert [version.is_self_transfer for _, version in tables.versions] == [False, False, is_self_transfer]
    one.record_verdict(tables.now, relayer_account.head_number, accepted=True)
    relayer_account.head_number, tables.now = relayer_account.head_number + 1, tables.now + 3600
    assert await raised(tables, relayer_account)  # reprices a self-transfer
    assert one.latest.is_self_transfer


async def test_turns_pass_only_while_the_ceiling_allows_an_offer(tables: Tables) -> None:
    relayer_account = account(5, tx(5))
    (one,) = relayer_account.pending_txs
    one.record_verdict(NOW - 3600, 0, accepted=True)
    relayer_account.fee_ceiling = FeeCeiling(5)
    assert not await raised(tables, relayer_account)
    assert one.turns_passed == 0
