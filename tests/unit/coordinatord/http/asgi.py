"""ASGI without a server: a scope, a body in pieces, and the answer."""

from collections.abc import Iterable
from typing import Any

import attrs

from common.daemon.asgi import ASGIApp, Message, Receive, Scope


@attrs.define
class Answered:
    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message["body"]


def scope(method: str = "GET", path: str = "/", client: str = "192.0.2.1", **headers: str) -> Scope:
    return {
        "type": "http",
        "method": method,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "client": (client, 1),
    }


def receiving(pieces: Iterable[bytes | None]) -> Receive:
    """Return the pieces in turn, then the end. None is a disconnect of the caller."""
    waiting = list(pieces)

    async def receive() -> dict[str, Any]:
        piece = waiting.pop(0)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    return receive


async def ask(app: ASGIApp, request: Scope, pieces: Iterable[bytes | None] = (b"",)) -> Answered:
    answered = Answered()
    await app(request, receiving(pieces), answered.send)
    return answered
