from collections.abc import Callable

import httpx
import pytest

from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.market.node import broadcast, connect, eth_call, read_receipt
from tests.unit.coordinatord.market.nodes import error, node_that, result

TO = "0x" + "11" * 20


def unreachable() -> httpx.Response:
    raise httpx.ConnectError("connection to https://user:word@node.example/v1/key-of-mine refused")


@pytest.mark.parametrize(
    "stumble",
    [
        unreachable,
        lambda: httpx.Response(502, text="<html>"),
        lambda: httpx.Response(503, json={"message": "busy"}),
        lambda: httpx.Response(429, json={"message": "slow down"}),
        lambda: error(-32005, "rate limit exceeded", status=429),
    ],
)
def test_node_that_stumbles_is_asked_again(stumble: Callable[[], httpx.Response]) -> None:
    asked: list[str] = []

    def answer(method: str, _: object) -> httpx.Response:
        asked.append(method)
        return stumble() if len(asked) < 3 else result("0x2a")

    assert node_that(answer).eth.block_number == 42
    assert asked == ["eth_blockNumber"] * 3


def test_silent_node_is_named_without_its_api_key() -> None:
    with pytest.raises(Retryable) as silence:
        node_that(lambda *_: unreachable()).eth.get_block("latest")
    assert "node.example" in str(silence.value)
    for secret in ("word", "key-of-mine"):
        assert secret not in str(silence.value)


@pytest.mark.parametrize("url", ["", "node.example", "ws://node.example", "http://", "file:///etc/passwd"])
def test_non_http_address_is_refused(url: str) -> None:
    with pytest.raises(Fatal, match="must be an http"), connect(url):
        pass


def test_error_with_an_http_error_status_is_an_answer() -> None:
    with pytest.raises(RpcError, match="query returned more than 10000 results"):
        eth_call(node_that(lambda *_: error(-32005, "query returned more than 10000 results", status=400)), TO, b"")


def test_answer_that_is_no_json_rpc_is_not_requested_again() -> None:
    asked: list[str] = []

    def answer(method: str, _: object) -> httpx.Response:
        asked.append(method)
        return httpx.Response(401, text="who are you?")

    with pytest.raises(Retryable, match=r"node\.example does not answer \(HTTP 401\)"):
        eth_call(node_that(answer), TO, b"")
    assert len(asked) == 1


def test_refusal_is_not_asked_again() -> None:
    asked: list[str] = []

    def answer(method: str, _: object) -> httpx.Response:
        asked.append(method)
        return error(3, "execution reverted", "0x1234")

    with pytest.raises(RpcError, match="execution reverted"):
        eth_call(node_that(answer), TO, b"")
    assert len(asked) == 1


def test_bytes_that_the_node_has_already_count_as_sent() -> None:
    broadcast(node_that(lambda *_: error(-32000, "already known")), b"\x02")
    with pytest.raises(RpcError):
        broadcast(node_that(lambda *_: error(-32000, "nonce too low")), b"\x02")


def test_pending_transaction_has_no_receipt() -> None:
    assert read_receipt(node_that(lambda *_: result({"blockNumber": None})), "0x") is None
    assert read_receipt(node_that(lambda *_: result(None)), "0x") is None
