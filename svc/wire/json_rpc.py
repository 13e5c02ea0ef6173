"""JSON-RPC reader of a node of the chain."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio
import attrs
import httpx

from common import strict_json
from common.inclusion.node_values import objects, octets_of, quantity
from common.refusal import Refused
from svc.errors import NodeFailed
from svc.wire.answers import UnfitAnswer, body_of, opened

__all__ = ["Call", "Node", "NodeFailed", "NodeRefusal"]

_MAX_ANSWER_BYTES: Final = 64 << 20  # a full block's receipts
_REQUEST_TIMEOUT_S: Final = 30.0
_OK: Final = 200
_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERROR: Final = 500

Call = tuple[str, Sequence[Any]]
"""Method and parameters."""


class NodeRefusal(NodeFailed):
    """The node answered with a JSON-RPC error."""


@attrs.frozen(eq=False)
class Node:
    """One endpoint. Its address may contain a key, so messages name only the host."""

    url: str = attrs.field(repr=False)
    http: httpx.AsyncClient
    max_answer_bytes: int = _MAX_ANSWER_BYTES

    @property
    def name(self) -> str:
        return httpx.URL(self.url).host

    async def call(self, method: str, *params: Any) -> Any:
        """Return the result. Raises NodeRefusal for an error of the node, NodeFailed without a valid answer."""
        return self._result(method, await self._posted(_request(method, params, 1)))

    async def call_all(self, calls: Sequence[Call]) -> list[Any] | None:
        """Make several calls in one request, and return their results in order. Return None if the node does not accept
        batches. Raises NodeFailed if the node does not answer or a call fails."""
        requests = [_request(method, params, number) for number, (method, params) in enumerate(calls)]
        try:
            answers = await self._posted(requests)
        except NodeFailed as failed:
            if failed.retryable:
                raise
            return None
        if not isinstance(answers, list):
            return None
        by_id = {each["id"]: each for each in answers if isinstance(each, dict) and isinstance(each.get("id"), int)}
        return [self._result(method, by_id.get(number)) for number, (method, _) in enumerate(calls)]

    async def quantity(self, method: str, *params: Any) -> int:
        return quantity({method: await self.call(method, *params)}, method)

    async def octets(self, method: str, *params: Any) -> bytes:
        return octets_of(await self.call(method, *params), method)

    async def block(self, number: int) -> Mapping[str, Any]:
        """Return a block without its transactions. Raises Refused if the node does not have the block."""
        found = await self.call("eth_getBlockByNumber", hex(number), False)
        return objects({"blocks": [found]}, "blocks")[0]

    async def _posted(self, request: object) -> Any:
        try:
            with anyio.fail_after(_REQUEST_TIMEOUT_S):
                async with opened(self.http, "POST", self.url, json=request) as response:
                    status, body = response.status_code, await body_of(response, self.max_answer_bytes)
            return strict_json.parse(body)
        except UnfitAnswer as unfit:
            raise NodeFailed(f"the node {self.name}: {unfit}", retryable=False) from None
        except (httpx.RequestError, TimeoutError) as trouble:
            raise NodeFailed(f"the node {self.name} does not answer: {type(trouble).__name__}") from None
        except Refused:
            if status != _OK:
                may_pass = status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR
                raise NodeFailed(f"the node {self.name} answered {status}", retryable=may_pass) from None
            raise NodeFailed(f"the node {self.name} is not a JSON-RPC endpoint", retryable=False) from None

    def _result(self, method: str, answer: Any) -> Any:
        if not isinstance(answer, dict):
            raise NodeFailed(f"the node {self.name} is not a JSON-RPC endpoint", retryable=False)
        if answer.get("error") is not None:
            error = answer["error"]
            message = error.get("message") if isinstance(error, dict) else error
            raise NodeRefusal(f"the node {self.name} refuses {method}: {str(message)[:200]}", retryable=False)
        if "result" not in answer:
            raise NodeFailed(f"the node {self.name} answers {method} without a result", retryable=False)
        return answer["result"]


def _request(method: str, params: Sequence[Any], number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": list(params)}
