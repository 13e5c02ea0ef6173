"""JSON-RPC of a scripted node. Subclasses give the answers.

`tests/integration/coordinatord/chain/test_transport.py` compares its envelopes with those of a real node.
"""

import json
from abc import ABC, abstractmethod
from typing import Any

import attrs

from coordinatord.chain.rpc.client import Rpc


@attrs.frozen
class RpcFault:
    """An error answer: `code`, `message`, perhaps `data`."""

    error: dict[str, Any]


class RpcNode(ABC):
    @abstractmethod
    def answer(self, method: str, params: list[Any]) -> Any:
        """Return the result of a call, or an RpcFault."""

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """Answer one call or a batch, like a node's HTTP transport."""
        calls = json.loads(body)
        answers = [self._enveloped(call) for call in (calls if isinstance(calls, list) else [calls])]
        return 200, json.dumps(answers if isinstance(calls, list) else answers[0]).encode()

    def rpc(self) -> Rpc:
        return Rpc(self.post)

    def _enveloped(self, call: dict[str, Any]) -> dict[str, Any]:
        told = self.answer(call["method"], call["params"])
        content = {"error": told.error} if isinstance(told, RpcFault) else {"result": told}
        return {"jsonrpc": "2.0", "id": call["id"], **content}
