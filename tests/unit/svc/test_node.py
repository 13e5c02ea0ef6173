from typing import Any

import httpx
import pytest

from svc.chain import facts
from svc.chain.node import Chain
from svc.errors import NodeFailed
from svc.wire.json_rpc import Node
from tests.support.fakes.streamed import StreamedTransport
from tests.unit.svc.fake_chain import TOLD, FakeNode
from tests.unit.svc.fake_coordinator import Asked

OWNER = b"\x11" * 20


def answering(*answers: Any) -> Chain:
    """Return a chain with one node per answer. Each node gives its answer to every request."""

    def node(answer: Any) -> Node:
        http = httpx.AsyncClient(transport=StreamedTransport(lambda _: answer))
        return Node("https://key@node.example/secret", http)

    return Chain([node(answer) for answer in answers])


def held(node: FakeNode) -> Chain:
    def answer(request: httpx.Request) -> httpx.Response:
        body = httpx.Response(200, content=request.read()).json()
        told = node(Asked("", body, request.headers, {}, 0))
        return httpx.Response(told.status, json=told.body)

    return Chain([Node("https://node.example", httpx.AsyncClient(transport=StreamedTransport(answer)))])


async def test_balance_and_code_are_those_of_the_chain() -> None:
    chain = held(FakeNode(balance=7, has_code=OWNER))
    assert await facts.read_balance(chain, TOLD.paytoken, OWNER) == 7
    assert [await facts.has_code(chain, each) for each in (OWNER, b"\x55" * 20)] == [True, False]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (httpx.Response(200, text="<html>"), "not a JSON-RPC endpoint"),
        (httpx.Response(200, json=[1]), "not a JSON-RPC endpoint"),
        (httpx.Response(200, json={"error": {"code": -32601, "message": "unknown"}}), "rejected eth_chainId: unknown"),
        (httpx.Response(200, json={"result": "many"}), "must be a hex quantity"),
        (httpx.Response(200, json={"result": None}), "must be a hex quantity"),
        (httpx.Response(200, json={"result": "0x1"}, headers={"content-encoding": "x-br"}), "expected none"),
    ],
)
async def test_unexpected_answer_is_a_failure(answer: httpx.Response, complaint: str) -> None:
    with pytest.raises(NodeFailed, match=complaint) as failed:
        await answering(answer).chain_id()
    assert "secret" not in failed.value.message  # a node's URL often contains an API key


async def test_node_that_does_not_answer_may_do_so_later() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    http = httpx.AsyncClient(transport=StreamedTransport(refuse))
    with pytest.raises(NodeFailed, match=r"node\.example does not answer") as failed:
        await Chain([Node("https://node.example", http)]).head()
    assert failed.value.retryable


@pytest.mark.parametrize("data", ["0x", "0x01", "0x" + "ff" * 32])
async def test_address_without_a_contract_is_a_failure(data: str) -> None:
    chain = answering(httpx.Response(200, json={"result": data}))
    chain._snapshot_block = 1
    with pytest.raises(NodeFailed):
        await facts.read_provider(chain, TOLD.provider_registry, 7)
    with pytest.raises(NodeFailed):
        await facts.read_fees(chain, TOLD.job_registry)


async def test_logs_are_read_in_portions_where_a_node_gives_no_more() -> None:
    node, job = FakeNode(head=9_000, refused_logs=1_000), b"\x07" * 32
    for block, provider in ((100, 7), (8_999, 8)):
        node.emit("JobClaimed", block, {"jobId": job, "providerId": provider, "claimedAt": 5})
    assert await facts.find_claimer(held(node), TOLD.job_registry, job, 0) == 8
    assert await facts.find_claimer(held(node), TOLD.job_registry, b"\x08" * 32, 0) is None
    assert node.asked.count("eth_getLogs") < 60


async def test_node_that_gives_no_logs_at_all_is_given_up() -> None:
    node = FakeNode(head=10**8, refused_logs=0)
    with pytest.raises(NodeFailed, match="block range too wide"):
        await facts.find_model_name(held(node), TOLD.job_registry, 1, 0)
    narrow = FakeNode(head=10**8, refused_logs=10_000)
    with pytest.raises(NodeFailed, match="a search for events would need more than"):
        await facts.find_model_name(held(narrow), TOLD.job_registry, 1, 0)


async def test_log_of_another_event_is_rejected() -> None:
    job = b"\x07" * 32
    log = {"topics": ["0x" + "ab" * 32, "0x" + job.hex(), "0x" + "00" * 32], "data": "0x" + "00" * 32}
    place = {"blockNumber": "0x5", "address": "0x" + "11" * 20, "blockHash": "0x" + "22" * 32}
    whole = log | place | {"transactionHash": "0x" + "33" * 32}
    for told, complaint in (
        (whole, "must be a log of the event JobClaimed"),
        (log | place, "malformed transactionHash: it must be hex of 32 bytes"),
    ):
        chain = answering(httpx.Response(200, json={"result": [told]}))
        chain._snapshot_block = 9
        with pytest.raises(NodeFailed, match=complaint):
            await facts.find_claimer(chain, TOLD.job_registry, job, 0)


async def test_logs_of_a_job_are_not_looked_for_behind_its_end() -> None:
    node, job = FakeNode(head=10**8, refused_logs=10_000), b"\x07" * 32
    node.emit("JobFailed", 900, {"jobId": job, "providerId": 7})
    ended = await facts.find_ended_job(held(node), TOLD.job_registry, job, 100)
    assert ended is not None
    assert (ended.event, ended.block) == ("JobFailed", 900)
