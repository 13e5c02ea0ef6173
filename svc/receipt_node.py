"""A node of the chain, asked by JSON-RPC for what a receipt is made of and checked against."""

from typing import Any, Final

import attrs
import httpx

from common import strict_json
from common.refusal import Refused
from svc.errors import ConnectionFailed
from svc.wire.answers import opened, whole

_LONGEST_ANSWER: Final = 64 << 20  # a full block's receipts


@attrs.frozen
class Node:
    """Its address may carry a key, so messages name its host alone."""

    url: str
    http: httpx.AsyncClient

    @property
    def name(self) -> str:
        return httpx.URL(self.url).host

    async def call(self, method: str, *params: Any) -> Any:
        """The result. Raises ConnectionFailed: `node_failed`, or `node_refused` where the node says why not."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        try:
            async with opened(self.http, "POST", self.url, json=request) as reply:
                answer = strict_json.parse((await whole(reply, _LONGEST_ANSWER)).content)
        except (httpx.HTTPError, httpx.InvalidURL) as trouble:
            raise _failed(f"the node {self.name} does not answer: {type(trouble).__name__}") from None
        except Refused:
            answer = None
        if not isinstance(answer, dict):
            raise _failed(f"the node {self.name} is no JSON-RPC endpoint", retryable=False)
        if answer.get("error") is not None:
            said = answer["error"].get("message") if isinstance(answer["error"], dict) else answer["error"]
            raise ConnectionFailed(
                f"the node {self.name} refuses {method}: {str(said)[:200]}", code="node_refused", retryable=False
            )
        return answer.get("result")


def _failed(message: str, *, retryable: bool = True) -> ConnectionFailed:
    return ConnectionFailed(message, code="node_failed", retryable=retryable)
