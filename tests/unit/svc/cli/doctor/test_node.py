from typing import Any

import httpx
import pytest

from svc.cli.doctor.node import Node, NodeTrouble
from tests.fakes.streamed import StreamedTransport

pytestmark = pytest.mark.anyio
_OWNER, _TOKEN = b"\x11" * 20, b"\x22" * 20


def node(answer: Any) -> Node:
    return Node("http://node", httpx.AsyncClient(transport=StreamedTransport(lambda _: answer)))


def result(value: Any) -> Node:
    return node(httpx.Response(200, json={"id": 1, "jsonrpc": "2.0", "result": value}))


async def test_balance_is_asked_of_the_token_for_the_owner() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.read().decode())
        return httpx.Response(200, json={"result": "0x" + f"{7_000_000:064x}"})

    node = Node("http://node", httpx.AsyncClient(transport=StreamedTransport(answer)))
    assert await node.balance(_TOKEN, _OWNER) == 7_000_000
    (request,) = asked
    assert "0x70a08231" + "00" * 12 + "11" * 20 in request
    assert "0x" + "22" * 20 in request


@pytest.mark.parametrize(("code", "has"), [("0x", False), ("0xef0100" + "11" * 20, True)])
async def test_account_with_code_is_told_apart(code: str, has: bool) -> None:
    assert await result(code).has_code(_OWNER) is has


@pytest.mark.parametrize("answer", ["0x", "0x01", None, "word"])
async def test_address_without_the_contract_is_trouble_not_a_balance(answer: Any) -> None:
    with pytest.raises(NodeTrouble, match="there is no contract"):
        await result(answer).balance(_TOKEN, _OWNER)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (httpx.Response(200, text="<html>"), "no JSON-RPC endpoint"),
        (httpx.Response(200, json={"error": {"code": -32601}}), "refused eth_chainId"),
        (httpx.Response(200, json=[1]), "refused eth_chainId"),
        (httpx.Response(200, json={"result": "many"}), "where a number belongs"),
    ],
)
async def test_answer_of_something_else_is_trouble(answer: httpx.Response, complaint: str) -> None:
    with pytest.raises(NodeTrouble, match=complaint):
        await node(answer).chain_id()


async def test_node_that_does_not_answer_is_trouble() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with pytest.raises(NodeTrouble, match="does not answer: connection refused"):
        await Node("http://node", httpx.AsyncClient(transport=StreamedTransport(refuse))).head_time()
