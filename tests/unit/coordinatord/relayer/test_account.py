"""One relayer account: trusted answers of a node, watched transactions and missing nonces."""

from collections.abc import Sequence
from typing import Any, Final

import anyio
import attrs
import pytest

from common.secp256k1 import Wallet
from coordinatord.base.errors import Retryable
from coordinatord.base.metrics import REGISTRY, relayer_funds
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import HeadBlock
from coordinatord.chain.relayer.fees import FeeMarket
from coordinatord.chain.relayer.in_flight import PendingTx, PendingTxs, SignedVersion
from coordinatord.chain.relayer.repair import find_suspect_nonces
from coordinatord.chain.relayer.role import RelayerRole
from tests.support.fakes.rpc_node import RpcFault, RpcNode

GWEI: Final = 10**9
WALLET: Final = Wallet(b"\x01" * 32)
ADDRESS: Final = "0x" + WALLET.address.hex()
BLOCK: Final = HeadBlock(77, "0x" + "ab" * 32, "0x" + "aa" * 32, 30_000_000, 10 * GWEI, ())
AT: Final = {"blockHash": BLOCK.hash}
REFUSED: Final = RpcFault({"code": -32603, "message": "Internal error"})
HAS, LACKS = ("0x" + f"{word:064x}" for word in (1, 0))


@attrs.define
class Node(RpcNode):
    """A node that answers by method."""

    answers: dict[str, Any] = attrs.field(
        factory=lambda: {
            "eth_getTransactionCount": "0x5",
            "eth_getBalance": "0x64",
            "eth_maxPriorityFeePerGas": hex(2 * GWEI),
            "eth_feeHistory": {"baseFeePerGas": ["0x1", hex(20 * GWEI)], "reward": [[hex(GWEI)], ["0x0"]]},
            "eth_call": HAS,
        }
    )
    asked: list[tuple[str, Any]] = attrs.field(factory=list)

    def answer(self, method: str, params: list[Any]) -> Any:
        self.asked.append((method, params))
        return self.answers[method]


def account(*pending: PendingTx, lost: tuple[PendingTx, ...] = (), role: RelayerRole | None = None) -> RelayerAccount:
    return RelayerAccount(1, WALLET, PendingTxs(pending), PendingTxs(lost), role=role)


def tx(nonce: int, *versions: bytes) -> PendingTx:
    made = [
        SignedVersion(name, b"raw", max_fee=10, max_tip=1, is_self_transfer=False)
        for name in versions or (bytes([nonce]) * 32,)
    ]
    return PendingTx(nonce, nonce, b"\x01" * 20, 100, made)


async def read(node: Node, relayer_account: RelayerAccount) -> RelayerAccount:
    await relayer_account.read(node.rpc(), BLOCK)
    return relayer_account


async def test_account_reads_nonce_balance_and_fee_market() -> None:
    node = Node()
    relayer_funds.labels(ADDRESS, "balance").set(7)
    relayer_account = await read(node, account())
    assert (
        relayer_account.nonce_floor,
        relayer_account.balance_wei,
        relayer_account.head_number,
        relayer_account.tx_limits.block_gas_limit,
    ) == (5, 100, 77, 30_000_000)
    assert relayer_account.fee_market == FeeMarket(20 * GWEI, 2 * GWEI)
    assert node.asked == [
        ("eth_getTransactionCount", [ADDRESS, AT]),
        ("eth_getTransactionCount", [ADDRESS, "pending"]),
        ("eth_getBalance", [ADDRESS, AT]),
        ("eth_maxPriorityFeePerGas", []),
        ("eth_feeHistory", ["0x10", "latest", [60]]),
    ]
    assert REGISTRY.get_sample_value("coordinatord_relayer_funds_wei", {"account": ADDRESS, "kind": "balance"}) == 100


@pytest.mark.parametrize(
    ("changed", "market"),
    [
        ({"eth_maxPriorityFeePerGas": hex(9 * GWEI)}, FeeMarket(20 * GWEI, 3 * GWEI)),
        ({"eth_maxPriorityFeePerGas": REFUSED}, FeeMarket(20 * GWEI, GWEI)),
        ({"eth_feeHistory": REFUSED}, FeeMarket(10 * GWEI, 2 * GWEI)),
        ({"eth_feeHistory": {"baseFeePerGas": []}}, FeeMarket(10 * GWEI, 2 * GWEI)),
        ({"eth_feeHistory": {"baseFeePerGas": [hex(15 * GWEI)], "reward": None}}, FeeMarket(15 * GWEI, 2 * GWEI)),
    ],
)
async def test_node_that_advises_nothing_or_too_much_is_not_followed(
    changed: dict[str, Any], market: FeeMarket
) -> None:
    node = Node()
    node.answers |= changed
    assert (await read(node, account())).fee_market == market


async def test_chain_without_base_fee_has_none() -> None:
    node, relayer_account = Node(), account()
    node.answers["eth_feeHistory"] = {"baseFeePerGas": []}
    await relayer_account.read(node.rpc(), attrs.evolve(BLOCK, next_base_fee=0))
    assert relayer_account.fee_market.base_fee == 0


@pytest.mark.parametrize("method", ["eth_getTransactionCount", "eth_getBalance"])
async def test_incomplete_account_read_changes_nothing(method: str) -> None:
    node, relayer_account = Node(), account()
    node.answers[method] = REFUSED
    with pytest.raises(Retryable, match=method):
        await read(node, relayer_account)
    assert relayer_account.head_number == 0


async def test_nonces_count_as_used_from_the_first_report() -> None:
    node, relayer_account = Node(), account()
    relayer_account.nonce_floor_since = -1.0
    await read(node, relayer_account)
    first = relayer_account.nonce_floor_since
    assert first >= 0
    relayer_account.nonce_floor_since = -1.0
    await read(node, relayer_account)
    assert relayer_account.nonce_floor_since == -1.0
    node.answers["eth_getTransactionCount"] = "0x6"
    await read(node, relayer_account)
    assert first <= relayer_account.nonce_floor_since <= anyio.current_time()


async def test_pools_of_further_nodes_count_unless_they_are_far_off() -> None:
    relayer_account = await read(Node(), account())
    assert relayer_account.pool_nonces_end == relayer_account.nonce_floor == 5
    pools = [Node({"eth_getTransactionCount": answer}) for answer in ("0x8", REFUSED, "0x6", "0xffff")]
    await relayer_account.read_pools(node.rpc() for node in pools)
    assert relayer_account.pool_nonces_end == 8
    await read(Node(), relayer_account)
    assert relayer_account.pool_nonces_end == 5


async def test_role_is_heard_with_the_block() -> None:
    node, role = Node(), RelayerRole(WALLET.address, {"jobRegistry": b"\x02" * 20})
    relayer_account = await read(node, account(role=role))
    assert node.asked[-1][0] == "eth_call"
    assert not relayer_account.lacks_role
    node.answers["eth_call"] = LACKS
    assert (await read(node, relayer_account)).lacks_role
    assert not account().lacks_role  # the default


async def test_balance_may_be_filled_up_without_a_block() -> None:
    node, relayer_account = Node(), account()
    await relayer_account.read_balance(node.rpc())
    assert (relayer_account.balance_wei, node.asked) == (100, [("eth_getBalance", [ADDRESS, "latest"])])


def test_pending_costs_are_not_spendable() -> None:
    relayer_account = account(tx(1), tx(2))
    relayer_account.balance_wei = 5_000
    assert (relayer_account.spendable_wei, relayer_account.address) == (3_000, WALLET.address)


def test_every_version_is_watched_until_its_transaction_is_mined() -> None:
    one, other, gone = tx(1, b"a", b"b"), tx(2, b"c"), tx(3, b"d")
    relayer_account = account(one, other, lost=(gone,))
    assert sorted(relayer_account.watched_hashes()) == [b"a", b"b", b"c", b"d"]
    assert [relayer_account.find_watched(name) for name in (b"b", b"d", b"e")] == [one, gone, None]


def test_only_pending_transactions_precede_new_ones() -> None:
    replaced, lost = tx(6), tx(4)
    replaced.add_version(SignedVersion(b"fill", b"raw", max_fee=20, max_tip=2, is_self_transfer=True))
    relayer_account = account(tx(5), replaced, lost=(lost,))
    assert [tx_id for tx_id in (None, 4, 5, 6, 7) if relayer_account.precedes_new_txs(tx_id)] == [5]


def txs(nonces: Sequence[int]) -> PendingTxs:
    return PendingTxs(PendingTx(nonce, nonce, b"", 1, []) for nonce in nonces)


def account_at(floor: int, pending: Sequence[int] = (), *, lost: Sequence[int] = (), pool: int = 0) -> RelayerAccount:
    return RelayerAccount(1, WALLET, txs(pending), txs(lost), nonce_floor=floor, pool_nonces_end=pool)


@pytest.mark.parametrize(
    ("relayer_account", "following", "suspects"),
    [
        (account_at(5, [5, 6, 7]), 8, []),
        (account_at(42), 0, []),
        (account_at(5, [6, 8]), 9, [5, 7]),
        (account_at(5, pool=8), 6, []),
        (account_at(5, [7], pool=7), 9, [8]),
        (account_at(5, lost=[5], pool=6), 6, [5]),
    ],
    ids=["no gap", "new account", "gaps", "unknown bytes in a pool", "behind such bytes", "lost, with known bytes"],
)
def test_suspects_are_unused_nonces_without_a_transaction(
    relayer_account: RelayerAccount, following: int, suspects: list[int]
) -> None:
    assert find_suspect_nonces(relayer_account, following) == suspects


@pytest.mark.parametrize("pending", [[], [5, 7]])
def test_a_floor_far_too_low_makes_few_suspects(pending: list[int]) -> None:
    assert len(find_suspect_nonces(account_at(0, pending), 1_000_000)) == 256
