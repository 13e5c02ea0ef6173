"""Nodes of the chain, asked by JSON-RPC the few things that a client checks. Several must agree.

All questions of one sitting are about one block, the lowest of the nodes' heads, so that nodes which are a block apart
do not seem to disagree.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import anyio
import attrs
import httpx

from common import strict_json
from common.refusal import Refused
from common.scalars import hex_of
from svc.errors import NodeFailed
from svc.wire.answers import UnfitAnswer, opened, whole

T = TypeVar("T")

_LONGEST_ANSWER: Final = 16 << 20
_SECONDS: Final = 20.0
_NARROWEST: Final = 500  # blocks of logs: a node that refuses even so few is asked no further
_MOST_QUESTIONS: Final = 64  # about logs, in narrower and narrower ranges
_MISSING: Final = object()


class Refusal(NodeFailed):
    """The node answered with an error of its own."""


@attrs.frozen
class Node:
    """One endpoint. Its address may carry a key, so messages name its host alone."""

    url: str
    http: httpx.AsyncClient

    @property
    def name(self) -> str:
        return httpx.URL(self.url).host

    async def call(self, method: str, *params: Any) -> Any:
        """The result. Raises NodeFailed; Refusal where the node says why not."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        try:
            with anyio.fail_after(_SECONDS):
                answer = strict_json.parse(await self._posted(request))
        except UnfitAnswer as unfit:
            raise NodeFailed(f"the node {self.name}: {unfit}", retryable=False) from None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as trouble:
            raise NodeFailed(f"the node {self.name} does not answer: {type(trouble).__name__}") from None
        except Refused:
            raise NodeFailed(f"the node {self.name} is no JSON-RPC endpoint", retryable=False) from None
        if not isinstance(answer, dict):
            raise NodeFailed(f"the node {self.name} is no JSON-RPC endpoint", retryable=False)
        if answer.get("error") is not None:
            error = answer["error"]
            said = error.get("message") if isinstance(error, dict) else error
            raise Refusal(f"the node {self.name} refuses {method}: {str(said)[:200]}", retryable=False)
        return answer.get("result")

    async def _posted(self, request: dict[str, Any]) -> bytes:
        async with opened(self.http, "POST", self.url, json=request) as response:
            return (await whole(response, _LONGEST_ANSWER)).content


@attrs.define(eq=False)
class Chain:
    """The common word of all nodes, at one block. `NodeFailed` where any is silent or says something else."""

    nodes: Sequence[Node]
    _block: int | None = None

    async def head(self) -> int:
        """The block of this sitting: the latest that every node has."""
        if self._block is None:
            self._block = min(number_of(each) for each in await self._each(lambda node: node.call("eth_blockNumber")))
        return self._block

    def later(self) -> "Chain":
        """The same nodes in another sitting, at a later block."""
        return Chain(self.nodes)

    async def chain_id(self) -> int:
        return number_of(await self._agreed("chain id", lambda node: node.call("eth_chainId")))

    async def code(self, address: bytes) -> bytes:
        block = hex(await self.head())
        return bytes_of(await self._agreed("code", lambda node: node.call("eth_getCode", hex_of(address), block)))

    async def view(self, contract: bytes, data: bytes) -> bytes:
        """A contract's answer to a call; nothing where there is no contract."""
        call, block = {"to": hex_of(contract), "data": hex_of(data)}, hex(await self.head())
        return bytes_of(await self._agreed("a contract's answer", lambda node: node.call("eth_call", call, block)))

    async def block_time(self) -> int:
        """Unix seconds of the block of this sitting."""
        block = hex(await self.head())

        async def time(node: Node) -> object:
            found = await node.call("eth_getBlockByNumber", block, False)
            return found.get("timestamp") if isinstance(found, dict) else None

        return number_of(await self._agreed("the time of a block", time))

    async def logs(self, contract: bytes, topics: Sequence[bytes | None], first: int) -> list[dict[str, Any]]:
        """A contract's logs from a block on. Nodes that take narrow ranges alone are asked for those."""
        return await self._agreed("logs", lambda node: self._logs(node, contract, topics, first))

    async def _logs(
        self, node: Node, contract: bytes, topics: Sequence[bytes | None], first: int
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        last = await self.head()
        width, questions = max(1, last - first + 1), 0
        while first <= last:
            if questions == _MOST_QUESTIONS:
                raise Refusal(f"the node {node.name} would have to be asked for too many ranges of logs")
            until = min(first + width - 1, last)
            wanted = {
                "address": hex_of(contract),
                "topics": [None if topic is None else hex_of(topic) for topic in topics],
                "fromBlock": hex(first),
                "toBlock": hex(until),
            }
            questions += 1
            try:
                found += [_log(each) for each in _list(await node.call("eth_getLogs", wanted))]
            except Refusal:
                if width <= _NARROWEST:
                    raise
                width = max(_NARROWEST, width // 8)
                continue
            first = until + 1
        return found

    async def _agreed(self, what: str, ask: Callable[[Node], Awaitable[T]]) -> T:
        answers = await self._each(ask)
        if any(answer != answers[0] for answer in answers):
            names = ", ".join(node.name for node in self.nodes)
            raise NodeFailed(f"the nodes {names} disagree about {what}: find out which of them errs")
        return answers[0]

    async def _each(self, ask: Callable[[Node], Awaitable[T]]) -> list[T]:
        answers: list[Any] = [_MISSING] * len(self.nodes)
        failed: list[NodeFailed] = []

        async def fill(at: int, node: Node) -> None:
            try:
                answers[at] = await ask(node)
            except NodeFailed as trouble:
                failed.append(trouble)

        async with anyio.create_task_group() as tasks:
            for at, node in enumerate(self.nodes):
                tasks.start_soon(fill, at, node)
        if failed:
            raise failed[0]
        return answers


def number_of(quantity: object) -> int:
    try:
        return int(quantity, 16) if isinstance(quantity, str) and len(quantity) <= 66 else _no_quantity(quantity)
    except ValueError:
        return _no_quantity(quantity)


def bytes_of(data: object) -> bytes:
    text = data if isinstance(data, str) else ""
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise NodeFailed(f"a node answered {text[:40]!r} where hex was due", retryable=False) from None


def _no_quantity(quantity: object) -> int:
    raise NodeFailed(f"a node answered {str(quantity)[:40]!r} where a number was due", retryable=False)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise NodeFailed("a node answered no list where logs were due", retryable=False)
    return value


def _log(value: object) -> dict[str, Any]:
    """The fields of a log that all nodes tell alike; some add others of their own."""
    log = value if isinstance(value, dict) else {}
    topics = log.get("topics")
    return {
        "address": bytes_of(log.get("address")),
        "topics": [bytes_of(topic) for topic in topics] if isinstance(topics, list) else [],
        "data": bytes_of(log.get("data")),
        "block": number_of(log.get("blockNumber")),
        "transaction": bytes_of(log.get("transactionHash")),
    }
