"""Calls to a node: errors by their text, batches, heads and malformed answers."""

import time
from typing import Final

import msgspec
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.head import BlockPosition, ChainHead
from coordinatord.chain.relayer.blocks import read_latest_block
from coordinatord.chain.relayer.receipts import read_receipts
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.chain.rpc.client import Rpc, RpcCall
from coordinatord.chain.rpc.errors import RpcErrorKind, classify_error
from coordinatord.chain.rpc.views import View, read_many


@pytest.mark.parametrize(("code", "named"), [(-32005, "rate_limited"), (-32603, "config_read")])
async def test_single_error_for_a_batch_is_retryable(code: int, named: str) -> None:
    async def refuse(_request: bytes) -> tuple[int, bytes]:
        return 200, b'{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"no"}}' % code

    with pytest.raises(Retryable) as trouble:
        await read_many(Rpc(refuse), [View(bytes(20), b"", "config_read")] * 2, "config_read")
    assert (trouble.value.kind, trouble.value.code) == ("relay_unavailable", named)


def answering(status: int, body: bytes) -> Rpc:
    async def transport(_request: bytes) -> tuple[int, bytes]:
        return status, body

    return Rpc(transport)


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("coordinatord_rpc_request_seconds_count", {"outcome": outcome}) or 0


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (429, b"{}", "rate_limited"),
        (401, b"{}", "endpoint_refused"),
        (403, b"{}", "endpoint_refused"),
        (502, b"<html>", "chain_unreachable"),
        (404, b"", "chain_unreachable"),
    ],
)
async def test_a_status_that_is_no_answer_is_named_and_counted(status: int, body: bytes, code: str) -> None:
    before = counted(code)
    with pytest.raises(Retryable) as trouble:
        await answering(status, body).call("eth_chainId")
    assert (trouble.value.code or trouble.value.kind) == code
    assert counted(code) == before + 1


async def test_no_answer_is_an_unreachable_chain_and_counted() -> None:
    async def unreachable(_request: bytes) -> tuple[int, bytes]:
        raise NoResponse("refused")

    before = counted("chain_unreachable")
    with pytest.raises(Retryable) as trouble:
        await Rpc(unreachable).call("eth_chainId")
    assert trouble.value.kind == "chain_unreachable"
    assert counted("chain_unreachable") == before + 1


@pytest.mark.parametrize(
    "body",
    [b'{"id":1,"result":"\xff"}', b'{"id":1,"result":' + b"[" * 9999 + b"]" * 9999 + b"}", b'{"id":1,"result":"0xzz"}'],
    ids=["no text", "too deep", "no hex"],
)
async def test_an_answer_of_another_shape_is_an_unreachable_chain(body: bytes) -> None:
    for ask in (
        lambda: answering(200, body).call_as(BlockHeader, "eth_getBlockByNumber", "latest", False),
        lambda: answering(200, body).call_as(dict, "eth_getTransactionByHash"),
        lambda: read_latest_block(answering(200, body)),
        lambda: read_receipts(answering(200, b"[" + body + b"]"), [bytes(32)]),
    ):
        with pytest.raises(Retryable) as trouble:
            await ask()
        assert trouble.value.kind == "chain_unreachable"


@pytest.mark.parametrize("field", ["number", "hash", "parentHash", "timestamp", "logsBloom", "transactions"])
async def test_block_without_hex_is_rejected(field: str) -> None:
    word = "0x" + "ab" * 32
    block: dict[str, object] = {"hash": word, "parentHash": word, "transactions": [word], "logsBloom": word}
    block |= dict.fromkeys(("number", "timestamp", "gasLimit", "gasUsed"), "0x1")
    wrong = "0x" + "zz" * 32
    block[field] = [wrong] if field == "transactions" else wrong
    rpc = answering(200, msgspec.json.encode({"id": 1, "result": block}))
    index = field in {"timestamp", "logsBloom"}  # the relayer does not read these fields
    ask = rpc.call_as(BlockHeader, "eth_getBlockByNumber", "latest", False) if index else read_latest_block(rpc)
    with pytest.raises(Retryable):
        await ask


async def test_json_under_an_error_status_is_an_answer_and_counted() -> None:
    before = counted("answered")
    assert await answering(500, b'{"jsonrpc":"2.0","id":1,"result":"0x1"}').call("eth_chainId") == "0x1"
    assert counted("answered") == before + 1


async def test_large_batch_is_split_and_answered_in_order() -> None:
    sizes: list[tuple[int, int]] = []

    async def transport(request: bytes) -> tuple[int, bytes]:
        calls = msgspec.json.decode(request)
        sizes.append((len(calls), len(request)))
        return 200, msgspec.json.encode([{"id": call["id"], "result": call["params"][0]} for call in calls[::-1]])

    rpc = Rpc(transport)
    answers = await rpc.batch([RpcCall("eth_call", (n,)) for n in range(250)])
    assert [int(bytes(answer)) for answer in answers if isinstance(answer, msgspec.Raw)] == list(range(250))
    assert [count for count, _ in sizes] == [100, 100, 50]
    sizes.clear()
    await rpc.batch([RpcCall("eth_call", ("0x" + "00" * 100_000,))] * 12)
    assert [count for count, _ in sizes] == [9, 3]
    assert await rpc.batch([]) == []


WORDINGS: Final = {
    RpcErrorKind.TOO_MUCH_GAS: [
        ("geth", -32000, "exceeds block gas limit"),
        ("geth", -32000, "transaction gas limit too high (cap: 16777216, tx: 26700000)"),
        ("geth", -32000, "tx fee (1.32 ether) exceeds the configured cap (1.00 ether)"),
        ("reth", -32003, "exceeds block gas limit"),
        ("reth", -32003, "exceeds max transaction gas limit"),
        ("reth", -32003, "tx fee (1320000000000000000 wei) exceeds the configured cap (1000000000000000000 wei)"),
        ("reth", -32003, "transaction's gas limit 61000000 exceeds block's gas limit 60000000"),
        ("reth", -32003, "transaction's gas limit 26700000 exceeds maximum per-transaction gas limit 16777216"),
        ("reth", -32003, "gas limit too high"),
        ("revm", -32000, "transaction gas limit (26700000) is greater than the cap (16777216)"),
        ("revm", -32000, "transaction rejected before execution: transaction gas limit is greater than the cap"),
        ("revm", -32000, "caller gas limit exceeds the block gas limit"),
        ("Nethermind", -32010, "gas limit reached, Gas limit: 60000000, gas limit of rejected tx: 61000000"),
        ("Nethermind", -32010, "GasLimitExceeded, Gas limit: 60000000, gas limit of rejected tx: 61000000"),
        (
            "Nethermind",
            -32010,
            "transaction invalid, TxGasLimitCapExceeded: Gas limit 26700000 exceeded cap of 16777216.",
        ),
        ("Besu", -32005, "Transaction gas limit exceeds block gas limit"),
        ("Besu", -32005, "Transaction gas limit cap exceeded"),
        ("Besu", -32000, "Transaction fee cap exceeded"),
        ("Erigon", -32000, "INVALID: gas limit is too high"),
        ("Erigon", -32000, "tx fee (1.32 ether) exceeds the configured cap (1.00 ether)"),
        ("anvil", -32000, "intrinsic gas too high -- tx.gas_limit > env.cfg.tx_gas_limit_cap"),
        ("anvil", -32000, "intrinsic gas too high -- tx.gas_limit > env.block.gas_limit"),
        (
            "anvil",
            -32000,
            "Transaction gas limit is greater than the block gas limit, gas_limit: 26700000, cap: 16777216",
        ),
    ],
    RpcErrorKind.OVERSIZED: [
        ("geth", -32000, "oversized data: transaction size 131700, limit 131072"),
        ("reth", -32003, "oversized data: transaction size 131700, limit 131072"),
        ("Nethermind", -32010, "transaction too large"),
        ("Nethermind", -32010, "MaxTxSizeExceeded"),
        ("Erigon", -32000, "INVALID: oversized data"),
        ("Erigon", -32000, "INVALID: RLPTooLong"),
    ],
    RpcErrorKind.TOO_LITTLE_GAS: [
        ("geth", -32000, "intrinsic gas too low: gas 20000, minimum needed 21000"),
        ("geth", -32000, "insufficient gas for floor data gas cost: gas 21000, minimum needed 61000"),
        ("reth", -32000, "intrinsic gas too low"),
        ("Besu", -32003, "Intrinsic gas exceeds gas limit"),
        ("Erigon", -32000, "INVALID: IntrinsicGas"),
        ("anvil", -32000, "intrinsic gas too low"),
    ],
    RpcErrorKind.UNDERPRICED: [
        ("geth", -32000, "replacement transaction underpriced"),
        ("geth", -32000, "transaction underpriced"),
        ("geth", -32000, "transaction gas price below minimum: gas tip cap 1, minimum needed 1000000"),
        ("reth", -32000, "insufficient gas price to replace existing transaction"),
        ("reth", -32000, "transaction feeCap 7 below chain minimum"),
        ("reth", -32000, "transaction priority fee below minimum required priority fee 1000000"),
        ("reth", -32000, "max fee per gas less than block base fee"),
        ("Nethermind", -32010, "replacement transaction underpriced, Max replacement fee bump not reached"),
        ("Nethermind", -32010, "ReplacementNotAllowed"),
        ("Nethermind", -32010, "FeeTooLow, MaxFeePerGas too low. MaxFeePerGas: 1, BaseFee: 7"),
        ("Besu", -32000, "Replacement transaction underpriced"),
        ("Besu", -32009, "Gas price below configured minimum gas price"),
        ("Besu", -32009, "Gas price below current base fee"),
        ("Erigon", -32000, "FEE_TOO_LOW: fee too low"),
        ("Erigon", -32000, "INVALID: could not replace existing tx"),
        ("anvil", -32003, "replacement transaction underpriced"),
        ("anvil", -32003, "max fee per gas less than block base fee"),
    ],
    RpcErrorKind.NONCE_TOO_LOW: [
        ("geth", -32000, "nonce too low: next nonce 8, tx nonce 7"),
        ("reth", -32000, "nonce too low: next nonce 8, tx nonce 7"),
        ("Nethermind", -32010, "nonce too low, Current nonce: 8, nonce of rejected tx: 7"),
        ("Nethermind", -32010, "OldNonce, Current nonce: 8, nonce of rejected tx: 7"),
        ("Besu", -32001, "Nonce too low"),
        ("Erigon", -32000, "INVALID: nonce too low"),
        ("anvil", -32003, "nonce too low"),
    ],
    RpcErrorKind.NONCE_TOO_HIGH: [
        ("geth", -32000, "nonce too high: tx nonce 9, gapped nonce 8"),
        ("geth", -32000, "gapped-nonce tx from delegated accounts"),
        ("reth", -32000, "nonce too high"),
        ("Nethermind", -32010, "NonceGap, Future nonce. Expected nonce: 8"),
        ("Nethermind", -32010, "nonce too far in future"),
        ("Besu", -32006, "Nonce too high"),
        ("Besu", -32000, "Transaction nonce is too distant from current sender nonce"),
        ("Besu", -32000, "An invalid transaction with a lower nonce exists"),
    ],
    RpcErrorKind.ALREADY_KNOWN: [
        ("geth", -32000, "already known"),
        ("reth", -32000, "already known"),
        ("reth", -32000, "[0xab…]: already imported"),
        ("Nethermind", -32010, "AlreadyKnown"),
        ("Besu", -32000, "Known transaction"),
        ("Erigon", -32000, "ALREADY_EXISTS: already known"),
        ("Erigon", -32000, "INVALID: existing txn with same hash"),
        ("anvil", -32003, "transaction already imported"),
    ],
    RpcErrorKind.NO_FUNDS: [
        ("geth", -32000, "insufficient funds for gas * price + value: balance 1, tx cost 2, overshot 1"),
        ("reth", -32003, "insufficient funds for gas * price + value: have 1 want 2"),
        ("reth", -32003, "transaction overdraws from account, balance: 1, cost: 2"),
        ("Nethermind", -32010, "InsufficientFunds, Account balance: 1, cumulative cost: 2"),
        ("Besu", -32004, "Upfront cost exceeds account balance"),
        ("Erigon", -32000, "INVALID: insufficient funds"),
        ("anvil", -32003, "Insufficient funds for gas * price + value"),
    ],
    RpcErrorKind.POOL_FULL: [
        ("geth", -32000, "txpool is full"),
        ("geth", -32000, "account limit exceeded: pooled 64 txs"),
        ("reth", -32000, "transaction discarded outright due to pool size constraints"),
        ("Erigon", -32000, "INTERNAL_ERROR: pending sub-pool is full"),
    ],
    RpcErrorKind.UNSUPPORTED: [
        ("geth", -32000, "transaction type not supported: type 2 rejected, pool not yet in London"),
        ("geth", -32000, "transaction type not supported: tx type 2 not supported by this pool"),
        ("reth", -32000, "transaction type not supported"),
        ("reth", -32000, "invalid chain ID"),
        ("Nethermind", -32010, "unsupported transaction type"),
        ("Nethermind", -32010, "transaction invalid, InvalidTxChainId: Expected 1, got 5."),
        ("Besu", -32602, "Invalid transaction type"),
        ("Besu", -32000, "Wrong chainId"),
        ("Erigon", -32000, "INVALID: fork supporting this transaction type is not activated yet"),
        ("Erigon", -32000, "invalid chain id, expected: 1 got: 5"),
        ("anvil", -32003, "invalid chain id for signer"),
    ],
    RpcErrorKind.REFUSED: [
        ("geth", -32601, "the method eth_sendRawTransaction does not exist/is not available"),
        ("Besu", -32604, "Method not enabled"),
        ("Besu", -40100, "Unauthorized"),
    ],
    RpcErrorKind.INTERNAL: [
        ("any", -32603, "Internal error"),
        ("Besu", -32000, "Plugin has marked the transaction as invalid"),
        ("any", -32000, "no wording that anybody has seen"),
    ],
    RpcErrorKind.RATE_LIMITED: [("any", -32005, "limit exceeded"), ("any", -32000, "Too Many Requests")],
    RpcErrorKind.REVERTED: [("any", 3, "execution reverted: transaction too large, nonce too low")],
}


@pytest.mark.parametrize(
    ("kind", "client", "code", "message"),
    [(kind, *wording) for kind, wordings in WORDINGS.items() for wording in wordings],
)
def test_refusal_is_classified_alike_for_every_client(kind: RpcErrorKind, client: str, code: int, message: str) -> None:
    assert classify_error({"code": code, "message": message}).kind is kind, client


@pytest.mark.parametrize("words", ["nonce already ", "max fee less than ", "transaction size ", "exceeds max ", "fee "])
def test_long_message_is_cut_before_it_is_read(words: str) -> None:
    message = words * (100_000 // len(words))
    started = time.process_time()
    error = classify_error({"code": -32000, "message": message})
    assert time.process_time() - started < 0.1  # seconds; matching against an unbounded text would take longer
    assert len(error.message) == 1_000


def test_message_that_is_no_text_is_left_out() -> None:
    error = classify_error({"code": 3, "message": [["nonce too low"]]})
    assert (error.message, error.kind) == ("", RpcErrorKind.REVERTED)


def test_revert_data_is_cut() -> None:
    assert (
        len(classify_error({"code": 3, "message": "execution reverted", "data": "0x" + "ab" * 1_000_000}).data) == 4096
    )


WINDOW = 256
Block = tuple[int, str, str]  # number, hash, parent hash


def block(number: int, branch: str = "a", parent_branch: str | None = None) -> Block:
    return number, f"{branch}{number}", f"{parent_branch or branch}{number - 1}"


@pytest.fixture
def seen() -> ChainHead:
    blocks = ChainHead(WINDOW)
    for number in (10, 11, 12):
        blocks.add(*block(number)[:2])
    return blocks


def test_every_block_is_ahead_of_an_unknown_head() -> None:
    assert ChainHead(WINDOW).classify(*block(10)) is BlockPosition.AHEAD


@pytest.mark.parametrize(
    ("there", "place"),
    [
        (block(12), BlockPosition.SAME),
        (block(13), BlockPosition.NEXT),
        (block(15), BlockPosition.AHEAD),
        (block(11), BlockPosition.BEHIND),
        (block(12, "b", "a"), BlockPosition.FORK),
        (block(13, "b"), BlockPosition.FORK),
        (block(11, "b"), BlockPosition.FORK),
        (block(3), BlockPosition.BEHIND),
    ],
    ids=["same", "child", "gap", "lagging node", "sibling", "child of another", "shorter branch", "never seen"],
)
def test_block_is_placed_relative_to_the_known_head(seen: ChainHead, there: Block, place: BlockPosition) -> None:
    assert seen.classify(*there) is place


def test_after_a_restart_only_that_block_is_known(seen: ChainHead) -> None:
    seen.restart(12, "b12")
    assert seen.classify(*block(11)) is BlockPosition.BEHIND
    assert seen.classify(*block(13, "b")) is BlockPosition.NEXT


def test_only_the_window_is_remembered() -> None:
    blocks = ChainHead(WINDOW)
    for number in range(WINDOW + 10):
        blocks.add(*block(number)[:2])
    assert blocks.classify(*block(5, "b")) is BlockPosition.BEHIND
    assert blocks.classify(*block(20, "b")) is BlockPosition.FORK
    assert blocks.classify(*block(20)) is BlockPosition.BEHIND


def test_after_going_back_the_ancestor_is_the_head(seen: ChainHead) -> None:
    seen.forget_above(11)
    assert (seen.head_number, seen.head_hash) == (11, "a11")
    assert seen.classify(*block(12, "b", "a")) is BlockPosition.NEXT
