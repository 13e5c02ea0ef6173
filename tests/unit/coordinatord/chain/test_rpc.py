"""What the HTTP side of an answer means to the caller of a method, and that each request is counted."""

import pytest

from coordinatord.chain.rpc import Rpc
from coordinatord.connections import NoAnswer
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
