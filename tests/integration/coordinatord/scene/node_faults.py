"""Faults of the node per JSON-RPC call: calls that match a rule are answered with an error."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from common.abi import selector
from tests.integration.coordinatord.scene.faults import Rule

Which = Callable[[dict[str, Any]], bool]


def node_error(which: Which, code: int = -32603, message: str = "internal error", *, only: bool = False) -> Rule:
    """Answer all calls of a request that contains a matching call with this error."""

    def rule(request: httpx.Request) -> httpx.Response | None:
        body = json.loads(request.content)
        calls = body if isinstance(body, list) else [body]
        if not any(which(call) for call in calls):
            return None
        answers = []
        for call in calls:
            answer = {"jsonrpc": "2.0", "id": call["id"]}
            if only and not which(call):
                answers.append(answer | {"result": "0x" + "00" * 31 + "01"})
            else:
                answers.append(answer | {"error": {"code": code, "message": message}})
        return httpx.Response(200, json=answers if isinstance(body, list) else answers[0])

    return rule


def method(name: str) -> Which:
    return lambda call: call["method"] == name


def view(signature: str) -> Which:
    """Match an eth_call of this function."""
    digits = "0x" + selector(signature).hex()
    return lambda call: call["method"] == "eth_call" and call["params"][0]["data"].startswith(digits)
