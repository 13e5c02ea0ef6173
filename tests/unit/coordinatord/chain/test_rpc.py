"""What the HTTP side of an answer means to the caller of a method, and that each request is counted."""

import msgspec
import pytest

from coordinatord.chain.rpc import Call, Rpc
from coordinatord.chain.transport import NoAnswer
from coordinatord.metrics import REGISTRY
from coordinatord.trouble import Retryable

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
        raise NoAnswer("refused")

    before = counted("chain_unreachable")
    with pytest.raises(Retryable) as trouble:
        await Rpc(unreachable).call("eth_chainId")
    assert trouble.value.kind == "chain_unreachable"
    assert counted("chain_unreachable") == before + 1


async def test_json_under_an_error_status_is_an_answer_and_counted() -> None:
    before = counted("answered")
    assert await answering(500, b'{"jsonrpc":"2.0","id":1,"result":"0x1"}').call("eth_chainId") == "0x1"
    assert counted("answered") == before + 1


async def test_many_calls_go_in_requests_that_a_provider_takes_and_are_answered_in_order() -> None:
    sizes: list[tuple[int, int]] = []

    async def transport(request: bytes) -> tuple[int, bytes]:
        calls = msgspec.json.decode(request)
        sizes.append((len(calls), len(request)))
        return 200, msgspec.json.encode([{"id": call["id"], "result": call["params"][0]} for call in calls[::-1]])

    rpc = Rpc(transport)
    answers = await rpc.batch([Call("eth_call", (n,)) for n in range(250)])
    assert [int(bytes(answer)) for answer in answers if isinstance(answer, msgspec.Raw)] == list(range(250))
    assert [count for count, _ in sizes] == [100, 100, 50]
    sizes.clear()
    await rpc.batch([Call("eth_call", ("0x" + "00" * 100_000,))] * 12)
    assert [count for count, _ in sizes] == [9, 3]
    assert await rpc.batch([]) == []
