"""How each HTTP outcome reaches the caller of an RPC method. Each request is counted."""

import msgspec
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.relayer.blocks import read_latest_block
from coordinatord.chain.relayer.receipts import read_receipts
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.chain.rpc.client import Rpc, RpcCall

pytestmark = pytest.mark.anyio


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
