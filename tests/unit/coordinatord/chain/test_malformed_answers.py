"""Nonsense from a node: each read fails with an error that its callers handle."""

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import attrs
import pytest

from common.secp256k1 import Wallet
from coordinatord.api.system.readiness import DeploymentReader
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.ask_registry import AskRegistry
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.contracts.payment_token import PaymentToken
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.chain.indexer.fetch import NodeSource, RangeWidth
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.blocks import HeadBlock, read_blocks_by_number, read_latest_block
from coordinatord.chain.relayer.in_flight import PendingTxs
from coordinatord.chain.relayer.receipts import read_receipts, read_receipts_and_count
from coordinatord.chain.relayer.role import RelayerRole
from coordinatord.chain.relayer.simulate import simulate_sequences
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.node import Node
from coordinatord.chain.rpc.nodes import Nodes
from tests.support.fakes.chain import DECODER
from tests.support.fakes.rpc_node import RpcNode

ADDRESS: Final = b"\x02" * 20
TX: Final = b"\x07" * 32
HASH: Final = "0x" + "ab" * 32
WORD: Final = "0x" + f"{1:064x}"
LOG: Final = {
    "address": DECODER.addresses[0],
    "topics": [WORD, HASH],
    "data": WORD,
    "blockNumber": "0x1",
    "blockHash": HASH,
    "logIndex": "0x0",
    "transactionHash": HASH,
}
RECEIPT: Final = {
    "transactionHash": "0x" + TX.hex(),
    "blockNumber": "0x1",
    "blockHash": HASH,
    "status": "0x1",
    "gasUsed": "0x5208",
    "logs": [LOG],
}
ANSWERS: Final[dict[str, Any]] = {
    "eth_blockNumber": "0x1",
    "eth_chainId": "0x1",
    "eth_gasPrice": "0x1",
    "eth_getTransactionCount": "0x5",
    "eth_getBalance": "0x64",
    "eth_maxPriorityFeePerGas": "0x1",
    "eth_feeHistory": {"baseFeePerGas": ["0x1", "0x2"], "reward": [["0x1"]]},
    "eth_call": "0x" + 5 * f"{1:064x}",
    "eth_getLogs": [LOG],
    "eth_getBlockReceipts": [RECEIPT],
    "eth_getTransactionReceipt": RECEIPT,
    "eth_simulateV1": [{"calls": [{"status": "0x1", "gasUsed": "0x1"}]}],
    "eth_getBlockByNumber": {
        "number": "0x1",
        "hash": HASH,
        "parentHash": HASH,
        "gasLimit": "0x1000",
        "gasUsed": "0x10",
        "timestamp": "0x1",
        "logsBloom": "0x" + "ff" * 256,
        "baseFeePerGas": "0x7",
        "transactions": ["0x" + TX.hex()],
    },
}
NONSENSE: Final = (
    "0xzz",
    "0x",
    "",
    "0x" + "z" * 64,
    "0x" + "f" * 64,
    "0x" + "f" * 5000,
    "0x1\n",
    "１",
    "-0x1",
    None,
    -1,
    1.5,
    10**30,
    True,
    [],
    {},
    [[]],
)


@attrs.define
class LyingNode(RpcNode):
    answers: dict[str, Any]
    asked: set[str] = attrs.field(factory=set)

    def answer(self, method: str, params: list[Any]) -> Any:
        self.asked.add(method)
        return self.answers[method]


class _NoWindows:
    async def read(self) -> None:
        return None


async def _account(rpc: Rpc) -> None:
    role = RelayerRole(ADDRESS, {"jobRegistry": ADDRESS})
    account = RelayerAccount(1, Wallet(b"\x01" * 32), PendingTxs(()), PendingTxs(()), role=role)
    await account.read(rpc, HeadBlock(1, HASH, HASH, 30_000_000, 7, ()))


async def _deployment(rpc: Rpc) -> None:
    windows: Any = _NoWindows()
    book: Any = None
    json.dumps(attrs.asdict(await DeploymentReader(book, JobRegistry(rpc, ADDRESS), windows, 1000).read_state()))


READS: Final[dict[str, Callable[[Rpc], Awaitable[object]]]] = {
    "account": _account,
    "deployment": _deployment,
    "latest block": read_latest_block,
    "blocks": lambda rpc: read_blocks_by_number(rpc, [1]),
    "receipts": lambda rpc: read_receipts(rpc, [TX] * 9),
    "receipts and count": lambda rpc: read_receipts_and_count(rpc, ADDRESS, [TX]),
    "simulation": lambda rpc: simulate_sequences(rpc, ADDRESS, [[((ADDRESS, b""), 100_000)]]),
    "job": lambda rpc: JobRegistry(rpc, ADDRESS).read_job(TX),
    "fees": lambda rpc: JobRegistry(rpc, ADDRESS).read_fees(),
    "ended in": lambda rpc: JobRegistry(rpc, ADDRESS).find_ending(TX, 1, 1),
    "head": lambda rpc: JobRegistry(rpc, ADDRESS).read_head(),
    "published": lambda rpc: AskRegistry(rpc, ADDRESS).was_published_in(TX, 1, 1),
    "provider": lambda rpc: ProviderRegistry(rpc, ADDRESS).read_provider_id(ADDRESS),
    "funds": lambda rpc: PaymentToken(rpc, ADDRESS).read_funds([ADDRESS], [(ADDRESS, TX)]),
    "index head": lambda rpc: NodeSource(rpc, DECODER).head(),
    "index headers": lambda rpc: NodeSource(rpc, DECODER).headers(1, 1),
    "index blocks": lambda rpc: NodeSource(rpc, DECODER).blocks(1, 1),
    "index range": lambda rpc: NodeSource(rpc, DECODER).range(1, 1, RangeWidth(10)),
}


def mutations(value: Any, put: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield the answer with each of its parts, and the whole, replaced by nonsense."""
    for wrong in NONSENSE:
        yield put(wrong)
    if isinstance(value, dict):
        for key in value:
            yield put({k: v for k, v in value.items() if k != key})
            yield from mutations(value[key], lambda wrong, key=key: put({**value, key: wrong}))
    if isinstance(value, list) and value:
        yield from mutations(value[0], lambda wrong: put([wrong, *value[1:]]))


@pytest.mark.parametrize("read", READS)
async def test_malformed_answer_is_an_error_of_the_node(read: str) -> None:
    honest = LyingNode(ANSWERS)
    with suppress(Retryable):
        await READS[read](honest.rpc())
    assert honest.asked
    for method in honest.asked:
        for wrong in mutations(ANSWERS[method], lambda told: told):
            try:
                await READS[read](LyingNode({**ANSWERS, method: wrong}).rpc())
            except (Retryable, RpcError):
                pass
            except Exception as error:
                raise AssertionError(f"{method} answered {str(wrong)[:200]}") from error


@pytest.mark.parametrize(
    ("member", "value"), [("timestamp", 1 << 38), ("number", 1 << 63)], ids=["after year 9999", "above bigint"]
)
async def test_block_that_cannot_be_stored_or_dated_is_refused(member: str, value: int) -> None:
    block = {**ANSWERS["eth_getBlockByNumber"], member: hex(value)}
    with pytest.raises(Retryable):
        await NodeSource(LyingNode({"eth_getBlockByNumber": block}).rpc(), DECODER).head()


@pytest.mark.parametrize("wrong", [[1], {"a": 1}, None, "x"])
async def test_malformed_id_of_an_answer_is_no_agreement(wrong: Any) -> None:
    async def one(_: bytes) -> tuple[int, bytes]:
        return 200, json.dumps({"id": wrong, "result": "0x1"}).encode()

    async def other(_: bytes) -> tuple[int, bytes]:
        return 200, json.dumps({"id": 1, "result": "0x1"}).encode()

    nodes = Nodes([Node("one", one), Node("other", other), Node("third", other)])
    status, answer = await nodes.agreed_transport()(b'{"id":1}')
    assert (status, json.loads(answer)) == (200, {"id": 1, "result": "0x1"})
