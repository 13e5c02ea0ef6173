"""How relays end, from receipts, the chain's state and pending transactions."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import attrs
import pytest

from common import abi
from common.artifacts import ERROR_NAMES
from common.secp256k1 import Wallet
from coordinatord.base.errors import Retryable
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.contracts.relayed_calls import ReceiptLog
from coordinatord.chain.relayer import budgets_sql, results_sql, transactions_sql
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs, SignedVersion
from coordinatord.chain.relayer.op_gas import PlannedGas
from coordinatord.chain.relayer.outbox_sql import RelayKind, StoredRelay
from coordinatord.chain.relayer.receipts import TxReceipt
from coordinatord.chain.relayer.resolution import find_inconclusive_refusals, resolve_receipts
from coordinatord.chain.relayer.results_sql import RefusedCall
from coordinatord.chain.relayer.transactions_sql import MinedTx
from coordinatord.chain.rpc.client import Rpc
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.role_connection import RoleConnection
from tests.support.fakes.rpc_node import RpcFault, RpcNode

WALLET: Final = Wallet(b"\x01" * 32)
REGISTRY_AT: Final = b"\x11" * 20
SELECTORS: Final = {name: selector for selector, name in ERROR_NAMES.items()}
STALE, UNKNOWN, NO_ROLE = (SELECTORS[name] for name in ("StaleSnapshot", "UnknownProvider", "SenderNotRelayer"))
EXPECTED: Final = 400
BLOCK, OTHER = b"\xbb" * 32, b"\xbc" * 32


@attrs.define
class Node(RpcNode):
    """A node whose calls revert by calldata and block. Blocks are listed by number, receipts as another node returns
    them."""

    reverts: dict[tuple[bytes, str], bytes] = attrs.field(factory=dict)
    blocks: dict[int, bytes] = attrs.field(factory=dict)
    receipt: dict[str, Any] | None = None
    asked: int = 0

    async def post(self, body: bytes) -> tuple[int, bytes]:
        self.asked += 1
        return await RpcNode.post(self, body)

    def answer(self, method: str, params: list[Any]) -> Any:
        match method, params:
            case "eth_call", [{"data": data, "from": sender, "to": to}, block]:
                assert (sender, to) == ("0x" + WALLET.address.hex(), "0x" + REGISTRY_AT.hex())
                reason = self.reverts.get((bytes.fromhex(data[2:]), block))
                if reason is None:
                    return "0x"
                return RpcFault({"code": 3, "message": "execution reverted", "data": "0x" + reason.hex()})
            case "eth_getBlockByNumber", [number, False]:
                found = self.blocks.get(int(number, 16))
                told = {"number": number, "parentHash": "0x" + bytes(32).hex(), "gasLimit": "0x1", "gasUsed": "0x0"}
                return found and {**told, "hash": "0x" + found.hex(), "transactions": []}
            case "eth_getTransactionReceipt", _:
                return self.receipt
        raise AssertionError(method)


class OneOfTwo(Rpc):
    """One of two nodes."""

    def __init__(self, node: Node, other: Node) -> None:
        super().__init__(node.post)
        self._other = other.rpc()

    @property
    def other_nodes(self) -> Sequence[Rpc]:
        return (self._other,)


@attrs.define
class Outbox:
    """Replaces the statements: gives scripted answers, and records writes in order."""

    carried: dict[int, list[StoredRelay]] = attrs.field(factory=dict)  # by transaction
    behind: set[int] = attrs.field(factory=set)
    taken_back: set[int] = attrs.field(factory=set)
    newest: list[tuple[int, bytes]] = attrs.field(factory=list)
    ended: list[tuple[str, str, float]] = attrs.field(factory=list)
    written: list[tuple[Any, ...]] = attrs.field(factory=list)
    asked: list[tuple[Any, ...]] = attrs.field(factory=list)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        yield cast("Connection", self)

    async def read_carried_relays(self, _: Connection, tx_ids: Iterable[int]) -> list[StoredRelay]:
        return [relay for tx_id in tx_ids for relay in self.carried.get(tx_id, [])]

    async def behind_undecided(self, _: Connection, relay_ids: Sequence[int]) -> set[int]:
        return self.behind & set(relay_ids)

    async def newest_blocks(self, _: Connection, chain_id: int, window: int) -> list[tuple[int, bytes]]:
        self.asked.append(("blocks", chain_id, window))
        return self.newest

    async def record_mined(self, _: Connection, txs: Sequence[MinedTx]) -> None:
        self.written.append(("mined", *(attrs.astuple(tx)[:5] for tx in txs)))

    async def take_back(self, _: Connection, tx_ids: Sequence[int], refused: Sequence[RefusedCall]) -> set[int]:
        self.written.append(("take back", tx_ids, [(call.tx_id, call.call_index) for call in refused]))
        return self.taken_back

    async def book(self, _: Connection, mined: Sequence[MinedTx]) -> dict[str, int]:
        self.written.append(("book", *((tx.tx_id, tx.gas_used, tx.is_self_transfer) for tx in mined)))
        return {"claim": sum(tx.gas_used for tx in mined)}

    async def requeue(self, _: Connection, relay_ids: Sequence[int], code: str) -> None:
        self.written.append(("requeue", relay_ids, code))

    async def end(
        self, _: Connection, tx_ids: Sequence[int], refused: Sequence[RefusedCall]
    ) -> list[tuple[str, str, float]]:
        self.written.append(("end", tx_ids, *map(attrs.astuple, refused)))
        return self.ended


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> Outbox:
    outbox = Outbox()
    for module, name, stand_in in (
        (results_sql, "read_carried_relays", outbox.read_carried_relays),
        (results_sql, "find_relays_behind_older", outbox.behind_undecided),
        (transactions_sql, "record_mined", outbox.record_mined),
        (results_sql, "rebind_carried_relays", outbox.take_back),
        (results_sql, "requeue_relays", outbox.requeue),
        (results_sql, "end_carried_relays", outbox.end),
        (budgets_sql, "book_gas", outbox.book),
        (transactions_sql, "read_newest_blocks", outbox.newest_blocks),
    ):
        monkeypatch.setattr(module, name, stand_in)
    return outbox


class Lessons(PlannedGas):
    """Record what a resolution reports about gas."""

    def __init__(self) -> None:
        super().__init__()
        self.learned: list[tuple[Any, ...]] = []

    def learn_usage(self, expected: int, used: int) -> None:
        self.learned.append(("used", expected, used))

    def learn_out_of_gas(self) -> None:
        self.learned.append(("starved",))


@attrs.define
class Mined:
    """The result of a resolution."""

    outbox: Outbox
    pending: list[PendingTx]
    node: Node = attrs.field(factory=Node)
    lessons: Lessons = attrs.field(factory=Lessons)
    left: list[int] = attrs.field(factory=list)

    async def resolve(self, *receipts: TxReceipt, other: Node | None = None) -> list[tuple[Any, ...]]:
        account = RelayerAccount(1, WALLET, PendingTxs(self.pending), PendingTxs([]))
        account.planned_gas = self.lessons
        rpc = self.node.rpc() if other is None else OneOfTwo(self.node, other)
        await resolve_receipts(cast("RoleConnection", self.outbox), rpc, account, receipts)
        self.left = [tx.id for tx in account.pending_txs]
        return self.outbox.written


def tx(tx_id: int, ops: int = 2, *, filled: bool = False) -> PendingTx:
    versions = [SignedVersion(bytes([tx_id]) * 32, b"raw", 10, 1, is_self_transfer=False)]
    if filled:
        versions.append(SignedVersion(bytes([0xF0 + tx_id]) * 32, b"raw", 10, 1, is_self_transfer=True))
    return PendingTx(tx_id, tx_id, REGISTRY_AT, 900, versions, expected_gas=EXPECTED if ops > 1 else 0)


def receipt(tx_id: int, *logs: ReceiptLog, succeeded: bool = True, fill: bool = False) -> TxReceipt:
    return TxReceipt(bytes([tx_id + (0xF0 if fill else 0)]) * 32, 77, BLOCK, succeeded, 500, logs)


def refusal(index: int, reason: bytes = STALE, registry: bytes = REGISTRY_AT) -> ReceiptLog:
    data = abi.uint(32) + abi.uint(len(reason)) + reason + bytes(-len(reason) % 32)
    topics = ["0x" + abi.topic("CallRefused(uint256,bytes)").hex(), "0x" + abi.uint(index).hex()]
    return ReceiptLog("0x" + registry.hex(), topics, "0x" + data.hex())


def relay(relay_id: int, tx_id: int, index: int | None, kind: RelayKind = RelayKind.SETTLE) -> StoredRelay:
    return StoredRelay(relay_id, kind, b"", REGISTRY_AT, bytes([relay_id]), "signed", 0, tx_id, index)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"coordinatord_relay_{name}", labels) or 0.0


async def test_transactions_of_others_change_nothing(outbox: Outbox) -> None:
    mined = Mined(outbox, [tx(1)])
    assert await mined.resolve(receipt(2)) == []
    assert (mined.left, outbox.asked, mined.node.asked) == ([1], [], 0)


async def test_mined_relays_succeed_unless_reported_refused(outbox: Outbox) -> None:
    outbox.ended = [("claim", "mined", 1.0)]
    ended_before = attrs.evolve(relay(7, 2, 1), state="mined")
    outbox.carried = {2: [relay(6, 2, 0), ended_before], 3: [relay(8, 3, 0)]}
    mined = Mined(outbox, [tx(1), tx(2), tx(3), tx(4, 1)], Node(reverts={(b"\x08", "latest"): STALE}))
    names: list[tuple[str, dict[str, str]]] = [
        ("outcomes_total", {"kind": "claim", "outcome": "mined"}),
        ("mined_seconds_count", {"kind": "claim"}),
        ("gas_total", {"kind": "claim"}),
    ]
    before = [sample(name, **labels) for name, labels in names]
    foreign = refusal(0, registry=b"\x12" * 20)
    told = await mined.resolve(receipt(1, foreign), receipt(2, refusal(1)), receipt(3, refusal(0)))
    refused = [(2, 1, "StaleSnapshot", STALE), (3, 0, "StaleSnapshot", STALE)]
    assert told == [
        ("mined", *((n, bytes([n]) * 32, 77, BLOCK, True) for n in (1, 2, 3))),
        ("take back", [1, 2, 3], [(2, 1), (3, 0)]),
        ("book", (1, 500, False), (2, 500, False), (3, 500, False)),
        ("requeue", [], "rpc_internal"),
        ("end", [1, 2, 3], *refused),
    ]
    assert outbox.asked == [("blocks", 1, 256)]
    assert mined.left == [4]
    assert mined.lessons.learned == [("used", EXPECTED, 500)]
    after = [sample(name, **labels) for name, labels in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 1500]


async def test_reverted_relays_are_retried_unless_refused(outbox: Outbox) -> None:
    outbox.carried = {1: [relay(5, 1, 0), relay(6, 1, 1), relay(7, 1, 2)]}
    at_block = {(b"\x06", "0x4d"): STALE, (b"\x07", "0x4d"): NO_ROLE}
    mined = Mined(outbox, [tx(1), tx(2, 1)], Node(reverts={**at_block, (b"\x06", "latest"): UNKNOWN}))
    # Logs of a reverted transaction are ignored.
    told = await mined.resolve(receipt(1, refusal(2), succeeded=False), receipt(2, succeeded=False))
    assert told[1:2] + told[3:] == [
        ("take back", [], [(1, 1)]),
        ("requeue", [5, 7], "rpc_internal"),
        ("end", [1, 2], (1, 1, "StaleSnapshot", STALE)),
    ]
    assert mined.lessons.learned == [("starved",)]


async def test_single_op_transaction_does_not_update_gas(outbox: Outbox) -> None:
    mined = Mined(outbox, [tx(1, 1), tx(2)])
    await mined.resolve(receipt(1, refusal(0)), receipt(2, refusal(1)))
    assert mined.lessons.learned == []


async def test_relays_replaced_by_a_self_transfer_are_requeued(outbox: Outbox) -> None:
    outbox.carried = {1: [relay(5, 1, 0)], 2: [relay(6, 2, 0)]}
    mined = Mined(outbox, [tx(1, filled=True), tx(2, filled=True)])
    told = await mined.resolve(receipt(1, fill=True), receipt(2))
    assert told[1:] == [
        ("take back", [2], []),
        ("book", (1, 500, True), (2, 500, False)),
        ("requeue", [5], "rpc_internal"),
        ("end", [2]),
    ]
    assert mined.lessons.learned == [("used", EXPECTED, 500)]
    assert (mined.left, outbox.asked) == ([], [])  # no relay was rejected


async def test_transaction_with_two_mined_versions_ends_once(outbox: Outbox) -> None:
    """Nodes on two branches return a receipt for the first version and for its replacement."""
    outbox.carried = {1: [relay(5, 1, 0)]}
    replaced = tx(1)
    replaced.versions.append(SignedVersion(b"\xe1" * 32, b"raw", 12, 1, is_self_transfer=False))
    mined = Mined(outbox, [replaced])
    told = await mined.resolve(receipt(1), attrs.evolve(receipt(1), tx_hash=b"\xe1" * 32, block_hash=OTHER))
    (_, (tx_id, tx_hash, *_)), *_ = told
    assert (tx_id, tx_hash) in {(1, b"\x01" * 32), (1, b"\xe1" * 32)}
    assert told[2:] == [("book", (1, 500, False)), ("requeue", [], "rpc_internal"), ("end", [1])]
    assert mined.left == []


async def test_relay_mined_in_an_earlier_transaction_is_done(outbox: Outbox) -> None:
    outbox.carried = {1: [relay(5, 1, 0), relay(6, 1, 1)]}
    outbox.taken_back = {5}
    told = await Mined(outbox, [tx(1)]).resolve(receipt(1, succeeded=False))
    assert ("requeue", [6], "rpc_internal") in told


def taken_apart() -> list[float]:
    return [sample("chained_total", kind=kind, outcome="taken_apart") for kind in ("fail", "settle")]


async def test_refused_relays_are_retried_if_they_came_too_early(outbox: Outbox) -> None:
    """The first relay depends on a pending relay, the second would succeed now, and the third is rejected for good."""
    outbox.carried = {1: [relay(5, 1, 0, RelayKind.FAIL), relay(6, 1, 1), relay(7, 1, 2)]}
    outbox.behind = {5}
    node = Node(reverts={(b"\x05", "latest"): STALE, (b"\x07", "latest"): STALE})
    before = taken_apart()
    told = await Mined(outbox, [tx(1)], node).resolve(receipt(1, refusal(0), refusal(1), refusal(2)))
    assert told[3] == ("requeue", [5, 6], "rpc_internal")
    assert [sample("chained_total", kind=kind, outcome="taken_apart") for kind in ("fail", "settle")] == [
        before[0] + 1,
        before[1],
    ]


async def test_relay_stays_open_while_receipts_differ(outbox: Outbox) -> None:
    elsewhere: dict[str, Any] = {"transactionHash": "0x" + "01" * 32, "blockNumber": "0x4d", "gasUsed": hex(500)}
    elsewhere |= {"blockHash": "0x" + OTHER.hex(), "status": "0x1", "logs": []}
    mined = Mined(outbox, [tx(1)])
    with pytest.raises(Retryable, match="another node reports different receipts"):
        await mined.resolve(receipt(1), other=Node(receipt=elsewhere))
    assert outbox.written == []


@pytest.mark.parametrize(("there", "found"), [(BLOCK, {2}), (OTHER, {1, 2}), (None, {1, 2})])
async def test_refusal_waits_for_blocks_the_node_lacks(outbox: Outbox, there: bytes | None, found: set[int]) -> None:
    outbox.behind = {2, 3}
    outbox.newest = [(8, OTHER), (9, BLOCK)]
    node = Node(blocks={8: OTHER} | ({9: there} if there else {}))
    assert await find_inconclusive_refusals(cast("Connection", outbox), node.rpc(), 1, [1, 2]) == found


async def test_without_a_refusal_nothing_is_asked(outbox: Outbox) -> None:
    node = Node()
    assert await find_inconclusive_refusals(cast("Connection", outbox), node.rpc(), 1, []) == set()
    assert (outbox.asked, node.asked) == ([], 0)
