"""How a node's answer to a raw transaction is classified."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from structlog.testing import capture_logs

from coordinatord.base.http_client import NoResponse
from coordinatord.chain.relayer.broadcast import SendResult, broadcast
from coordinatord.chain.relayer.in_flight import PendingTx, SignedVersion
from coordinatord.chain.rpc.client import Rpc
from tests.support.fakes.rpc_node import RpcFault, RpcNode


def tx(nonce: int, size: int = 10) -> PendingTx:
    version = SignedVersion(nonce.to_bytes(32, "big"), bytes(size), max_fee=10, max_tip=1, is_self_transfer=False)
    return PendingTx(nonce, nonce, b"\x01" * 20, 1000, [version])


class Node(RpcNode):
    """A node that answers every call with the given error, or with a result."""

    def __init__(self, error: dict[str, Any] | None = None) -> None:
        self._error = error
        self.batches: list[int] = []

    async def post(self, body: bytes) -> tuple[int, bytes]:
        self.batches.append(len(json.loads(body)))
        return await super().post(body)

    def answer(self, method: str, params: list[Any]) -> Any:
        return RpcFault(self._error) if self._error else "0x"


async def outcomes(node: Node, txs: list[PendingTx]) -> list[SendResult]:
    return [sending.outcome for sending in await broadcast(node.rpc(), txs)]


@pytest.mark.parametrize(
    ("code", "message", "outcome"),
    [
        (-32000, "already known", SendResult.ACCEPTED),
        (-32603, "nonce too low", SendResult.NONCE_USED),
        (-32000, "replacement transaction underpriced", SendResult.UNDERPRICED),
        (-32003, "max fee per gas less than block base fee", SendResult.UNDERPRICED),
        (-32000, "intrinsic gas too low", SendResult.UNSENDABLE),
        (-32000, "transaction gas limit too high (cap: 16777216, tx: 26700000)", SendResult.TOO_MUCH_GAS),
        (-32000, "oversized data", SendResult.OVERSIZED),
        (-32000, "insufficient funds for gas * price + value", SendResult.REFUSED_FOR_NOW),
        (-32000, "txpool is full", SendResult.REFUSED_FOR_NOW),
        (-32601, "the method eth_sendRawTransaction does not exist/is not available", SendResult.NOT_SERVED),
        (-32603, "Internal error", SendResult.REJECTED),
        (-32005, "limit exceeded", SendResult.RATE_LIMITED),
    ],
)
async def test_an_error_is_classified_by_its_message(code: int, message: str, outcome: SendResult) -> None:
    assert await outcomes(Node({"code": code, "message": message}), [tx(1)]) == [outcome]


async def test_many_go_in_batches_bounded_in_number_and_size() -> None:
    node = Node()
    assert await outcomes(node, [tx(n) for n in range(250)]) == [SendResult.ACCEPTED] * 250
    assert node.batches == [100, 100, 50]
    large = Node()
    await outcomes(large, [tx(n, size=400_000) for n in range(4)])
    assert large.batches == [2, 2]


async def test_nodes_get_the_signed_bytes() -> None:
    asked: list[Any] = []

    async def answer(request: bytes) -> tuple[int, bytes]:
        asked.extend((call["method"], call["params"]) for call in json.loads(request))
        return 200, b"[]"

    one = tx(1)
    one.versions.append(attrs.evolve(one.latest, signed_bytes=b"\xabc"))
    await broadcast(Rpc(answer), [one])
    assert asked == [("eth_sendRawTransaction", ["0xab63"])]


@pytest.mark.parametrize(
    ("message", "was_taken", "told"),
    [
        ("nonce too low", False, ["broadcast refused"]),
        # usually the nonce was used a moment ago
        ("nonce too low", True, ["broadcast again after its nonce was used"]),
        ("oversized data", True, ["broadcast refused"]),
        ("already known", False, []),
    ],
)
async def test_refusals_are_reported_unless_the_node_is_ahead(message: str, was_taken: bool, told: list[str]) -> None:
    one = tx(1)
    one.is_accepted = was_taken
    with capture_logs() as logs:
        await outcomes(Node({"code": -32000, "message": message}), [one])
    assert [line["event"] for line in logs] == told


async def test_no_answer_means_the_same_bytes_later() -> None:
    async def unreachable(request: bytes) -> tuple[int, bytes]:
        raise NoResponse("refused")

    (sending,) = await broadcast(Rpc(unreachable), [tx(1)])
    assert sending.outcome is SendResult.NO_ANSWER


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (401, b"", SendResult.NOT_SERVED),
        (403, b"", SendResult.NOT_SERVED),
        (200, b'{"id":null,"error":{"code":-32601,"message":"method not found"}}', SendResult.NOT_SERVED),
        (429, b"", SendResult.RATE_LIMITED),
        (502, b"", SendResult.NO_ANSWER),
        (200, b'{"id":null,"error":{"code":-32603,"message":"batch failed"}}', SendResult.NO_ANSWER),
    ],
)
async def test_refused_and_unanswered_requests_are_distinguished(status: int, body: bytes, outcome: SendResult) -> None:
    async def answer(request: bytes) -> tuple[int, bytes]:
        return status, body

    (sending,) = await broadcast(Rpc(answer), [tx(1)])
    assert sending.outcome is outcome


class NodeWithFallbacks(Rpc):
    """A node with fallback nodes."""

    def __init__(self, node: Node, *beside: Node) -> None:
        super().__init__(node.post)
        self._beside = [other.rpc() for other in beside]

    @property
    def other_nodes(self) -> Sequence[Rpc]:
        return self._beside


TAKES: dict[str, object] | None = None
TOO_LOW: dict[str, object] = {"code": -32000, "message": "nonce too low"}
OVERSIZED: dict[str, object] = {"code": -32000, "message": "oversized data"}
FULL: dict[str, object] = {"code": -32000, "message": "txpool is full"}
LIMITED: dict[str, object] = {"code": -32005, "message": "limit exceeded"}
NOT_SERVED: dict[str, object] = {"code": -32601, "message": "method not found"}


@pytest.mark.parametrize(
    ("by", "beside", "outcome"),
    [
        (TAKES, OVERSIZED, SendResult.ACCEPTED),
        (OVERSIZED, TAKES, SendResult.ACCEPTED),  # bytes that a node accepted are not given up
        (NOT_SERVED, TAKES, SendResult.ACCEPTED),
        (TOO_LOW, OVERSIZED, SendResult.NONCE_USED),
        (OVERSIZED, FULL, SendResult.OVERSIZED),
        (FULL, OVERSIZED, SendResult.OVERSIZED),
        (NOT_SERVED, FULL, SendResult.REFUSED_FOR_NOW),
        (NOT_SERVED, NOT_SERVED, SendResult.NOT_SERVED),
    ],
)
async def test_answers_of_several_nodes_become_one_outcome(
    by: dict[str, object] | None, beside: dict[str, object] | None, outcome: SendResult
) -> None:
    (sending,) = await broadcast(NodeWithFallbacks(Node(by), Node(beside)), [tx(1)])
    assert sending.outcome is outcome


class SilentNode(Node):
    """Node that closes the connection without a response."""

    async def post(self, body: bytes) -> tuple[int, bytes]:
        raise NoResponse("closed")


@pytest.mark.parametrize(
    ("nodes", "refusal"),
    [
        ([Node(FULL), Node(NOT_SERVED)], "rpc_internal"),
        ([Node(LIMITED), Node(LIMITED)], "rate_limited"),
        ([Node(LIMITED), Node(TAKES)], None),
        ([Node(OVERSIZED), SilentNode()], None),
        ([SilentNode(), Node(LIMITED)], None),
    ],
)
async def test_bytes_are_refused_only_if_every_node_refuses(nodes: list[Node], refusal: str | None) -> None:
    (sending,) = await broadcast(NodeWithFallbacks(*nodes), [tx(1)])
    assert sending.refusal == refusal


async def test_a_node_that_answers_soon_after_the_one_gone_by_is_heard() -> None:
    gone_by_has_answered = anyio.Event()

    class FirstNode(Node):
        async def post(self, body: bytes) -> tuple[int, bytes]:
            await anyio.lowlevel.checkpoint()  # let the request to the second node start
            gone_by_has_answered.set()
            return await super().post(body)

    class SecondNode(Node):
        async def post(self, body: bytes) -> tuple[int, bytes]:
            await gone_by_has_answered.wait()
            for _ in range(9):
                await anyio.lowlevel.checkpoint()
            return await super().post(body)

    (sending,) = await broadcast(NodeWithFallbacks(FirstNode(NOT_SERVED), SecondNode()), [tx(1)])
    assert sending.outcome is SendResult.ACCEPTED


async def test_slow_second_node_is_awaited_for_a_second() -> None:
    class SlowNode(Node):
        async def post(self, body: bytes) -> tuple[int, bytes]:
            await anyio.sleep(30)
            return await super().post(body)

    with anyio.fail_after(60):
        (taken,) = await broadcast(NodeWithFallbacks(Node(), SlowNode()), [tx(1)])
        (refused,) = await broadcast(NodeWithFallbacks(Node(NOT_SERVED), SlowNode()), [tx(1)])
    assert (taken.outcome, refused.outcome) == (SendResult.ACCEPTED, SendResult.NO_ANSWER)
