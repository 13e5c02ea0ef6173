"""Views that several ops need at the same time: which calls share a request, and how one failure affects the others."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import attrs
import pytest

from common import abi
from coordinatord.api.provider_ops.shared_views import SharedViews
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.views import Reverted, View
from tests.support.fakes.rpc_node import RpcFault, RpcNode

REGISTRY, OPERATOR = b"\x11" * 20, b"\x22" * 20
REVERT = {"code": 3, "message": "execution reverted", "data": "0x1234"}
BROKEN = {"code": -32603, "message": "internal error"}


def view(number: int) -> View:
    return View(REGISTRY, bytes([number]), f"code_{number}")


@attrs.define
class Node(RpcNode):
    """A node that answers each call with its own calldata, except for scripted failures. Answers wait for `go`."""

    errors: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    always: str | None = None  # answer to every call
    requests: list[list[str]] = attrs.field(factory=list)
    go: anyio.Event = attrs.field(factory=anyio.Event)

    async def post(self, body: bytes) -> tuple[int, bytes]:
        self.requests.append([call["params"][0]["data"] for call in json.loads(body)])
        await self.go.wait()
        return await RpcNode.post(self, body)

    def answer(self, method: str, params: list[Any]) -> Any:
        data = params[0]["data"]
        return RpcFault(self.errors[data]) if data in self.errors else self.always or data


async def ask(node: Node, numbers: Sequence[int]) -> list[bytes | Reverted | str]:
    """Ask all at once. A Retryable error becomes its code."""
    views = SharedViews(node.rpc())
    answers: dict[int, bytes | Reverted | str] = {}

    async def one(place: int, number: int) -> None:
        try:
            answers[place] = await views.read_view(view(number))
        except Retryable as trouble:
            answers[place] = trouble.code or trouble.kind

    async with anyio.create_task_group() as tasks:
        for place, number in enumerate(numbers):
            tasks.start_soon(one, place, number)
        await anyio.wait_all_tasks_blocked()
        node.go.set()
    return [answers[place] for place in range(len(numbers))]


async def test_concurrent_views_share_one_request() -> None:
    node = Node()
    assert await ask(node, [1, 2, 1, 3, 1]) == [b"\1", b"\2", b"\1", b"\3", b"\1"]
    assert node.requests == [["0x01", "0x02", "0x03"]]


async def test_many_views_are_split_into_requests() -> None:
    node = Node()
    assert await ask(node, range(250)) == [bytes([number]) for number in range(250)]
    assert [len(request) for request in node.requests] == [100, 100, 50]


async def test_a_revert_and_a_failure_of_one_view_are_its_own() -> None:
    node = Node({"0x01": REVERT, "0x02": BROKEN})
    assert await ask(node, [1, 2, 3]) == [Reverted(b"\x12\x34"), "code_2", b"\3"]


async def test_invalid_hex_fails_only_its_view() -> None:
    node = Node(always="0xzz")
    assert await ask(node, [1, 2]) == ["code_1", "code_2"]


async def test_refused_request_fails_each_view_with_its_code() -> None:
    async def refusing(_: bytes) -> tuple[int, bytes]:
        return 200, json.dumps({"jsonrpc": "2.0", "id": None, "error": BROKEN}).encode()

    views = SharedViews(Rpc(refusing))
    for number in (1, 2):
        with pytest.raises(Retryable) as trouble:
            await views.read_view(view(number))
        assert trouble.value.code == f"code_{number}"


async def test_view_requested_during_a_read_is_read_again() -> None:
    node = Node()
    views = SharedViews(node.rpc())
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(views.read_view, view(1))
            await anyio.wait_all_tasks_blocked()
        node.go.set()
    assert node.requests == [["0x01"], ["0x01"]]


@pytest.mark.parametrize(("word", "provider"), [(7, 7), (0, None)])
async def test_provider_of_a_wallet_is_its_registry_id(word: int, provider: int | None) -> None:
    node = Node(always="0x" + abi.uint(word).hex())
    node.go.set()
    rpc = node.rpc()
    assert await SharedViews(rpc).read_provider_id(ProviderRegistry(rpc, REGISTRY), OPERATOR) == provider
