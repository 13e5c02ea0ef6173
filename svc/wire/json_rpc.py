"""JSON-RPC client of a node of the chain."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio
import attrs
import httpx

from common import strict_json
from common.inclusion.node_values import bytes_from_hex, read_objects, read_quantity
from common.refusal import Refused
from svc.errors import NodeFailed
from svc.wire.answers import UnacceptableAnswer, open_response, read_body

__all__ = ["Call", "Node", "NodeFailed", "NodeRefusal"]

_MAX_ANSWER_BYTES: Final = 64 << 20  # enough for the receipts of a full block
_REQUEST_TIMEOUT_S: Final = 30.0
_OK_STATUS: Final = 200
_TOO_MANY_REQUESTS_STATUS: Final = 429
_MIN_SERVER_ERROR_STATUS: Final = 500

Call = tuple[str, Sequence[Any]]
"""Method and its parameters."""


class NodeRefusal(NodeFailed):
    """The node answered with a JSON-RPC error."""


@attrs.frozen(eq=False)
class Node:
    """JSON-RPC endpoint. The URL may contain an API key, so messages name only the host."""

    url: str = attrs.field(repr=False)
    http: httpx.AsyncClient
    max_answer_bytes: int = _MAX_ANSWER_BYTES

    @property
    def name(self) -> str:
        return httpx.URL(self.url).host

    async def call(self, method: str, *params: Any) -> Any:
        """Call a method of the node, and return the result.

        Raises NodeRefusal if the node returns an error, or NodeFailed if it returns no valid answer.
        """
        return self._read_result(method, await self._post(_request_json(method, params, 1)))

    async def call_batch(self, calls: Sequence[Call]) -> list[Any] | None:
        """Make several calls in one request, and return their results in order.

        Return None if the node does not accept batches. Raises NodeFailed if the node does not answer or a call fails.
        """
        requests = [_request_json(method, params, number) for number, (method, params) in enumerate(calls)]
        try:
            answers = await self._post(requests)
        except NodeFailed as failed:
            if failed.retryable:
                raise
            return None
        if not isinstance(answers, list):
            return None
        by_id = {each["id"]: each for each in answers if isinstance(each, dict) and isinstance(each.get("id"), int)}
        return [self._read_result(method, by_id.get(number)) for number, (method, _) in enumerate(calls)]

    async def call_quantity(self, method: str, *params: Any) -> int:
        return read_quantity({method: await self.call(method, *params)}, method)

    async def call_octets(self, method: str, *params: Any) -> bytes:
        return bytes_from_hex(await self.call(method, *params), method)

    async def block(self, number: int) -> Mapping[str, Any]:
        """Return a block without its transactions. Raises Refused if the node does not have the block."""
        found = await self.call("eth_getBlockByNumber", hex(number), False)
        return read_objects({"blocks": [found]}, "blocks")[0]

    async def _post(self, request: object) -> Any:
        try:
            with anyio.fail_after(_REQUEST_TIMEOUT_S):
                async with open_response(self.http, "POST", self.url, json=request) as response:
                    status, body = response.status_code, await read_body(response, self.max_answer_bytes)
            return strict_json.parse(body)
        except UnacceptableAnswer as unacceptable:
            raise NodeFailed(f"the node {self.name}: {unacceptable}", retryable=False) from None
        except (httpx.RequestError, TimeoutError) as error:
            raise NodeFailed(f"the node {self.name} does not answer: {type(error).__name__}") from None
        except Refused:
            if status != _OK_STATUS:
                transient = status == _TOO_MANY_REQUESTS_STATUS or status >= _MIN_SERVER_ERROR_STATUS
                raise NodeFailed(f"the node {self.name} answered {status}", retryable=transient) from None
            raise NodeFailed(
                f"the node {self.name} is not a JSON-RPC endpoint: check its URL", retryable=False
            ) from None

    def _read_result(self, method: str, answer: Any) -> Any:
        if not isinstance(answer, dict):
            raise NodeFailed(f"the node {self.name} is not a JSON-RPC endpoint: check its URL", retryable=False)
        if answer.get("error") is not None:
            error = answer["error"]
            message = error.get("message") if isinstance(error, dict) else error
            raise NodeRefusal(f"the node {self.name} rejected {method}: {str(message)[:200]}", retryable=False)
        if "result" not in answer:
            raise NodeFailed(f"the node {self.name} answered {method} without a result", retryable=False)
        return answer["result"]


def _request_json(method: str, params: Sequence[Any], number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": list(params)}
