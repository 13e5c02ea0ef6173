"""A model server on loopback with real sockets. Tests choose its answers and every way to misbehave."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import trio


@attrs.frozen
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@attrs.frozen
class Reply:
    """`pieces` are sent one by one. `cut` closes the connection early. `held` sends no more and stays open."""

    status: int = 200
    pieces: tuple[bytes, ...] = ()
    headers: dict[str, str] = attrs.field(factory=lambda: {"content-type": "application/json"})
    cut: bool = False
    held: bool = False

    @classmethod
    def of(cls, value: object, status: int = 200, **headers: str) -> "Reply":
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return cls(status, (json.dumps(value).encode(),), {"content-type": "application/json"} | named)

    @classmethod
    def events(cls, *events: object, cut: bool = False, held: bool = False) -> "Reply":
        texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
        pieces = tuple(f"data: {text}\n\n".encode() for text in texts)
        return cls(200, pieces, {"content-type": "text/event-stream"}, cut, held)


# None: never answer.
Answer = Callable[[Asked], Reply | None]


@attrs.define
class ModelServer:
    url: str
    answer: Answer
    asked: list[Asked] = attrs.field(factory=list)
    left: trio.Event = attrs.field(factory=trio.Event)  # set when a caller without an answer disconnects

    def paths(self) -> list[str]:
        return [f"{asked.method} {asked.path}" for asked in self.asked]

    async def serve(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        async with stream:
            while (asked := await _read(connection, stream)) is not None:
                self.asked.append(asked)
                reply = self.answer(asked)
                if reply is None:
                    await stream.receive_some(1)
                    self.left.set()
                    return
                if not await _write(connection, stream, reply):
                    return
                connection.start_next_cycle()


async def _read(connection: h11.Connection, stream: trio.SocketStream) -> Asked | None:
    head, body = None, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            headers = {name.decode(): value.decode() for name, value in head.headers}
            return Asked(head.method.decode(), head.target.decode(), headers, body)
        else:
            return None


async def _write(connection: h11.Connection, stream: trio.SocketStream, reply: Reply) -> bool:
    """Return true while the connection can be reused."""
    length = sum(len(piece) for piece in reply.pieces)
    headers = reply.headers if reply.cut or reply.held else reply.headers | {"content-length": str(length)}
    head = h11.Response(status_code=reply.status, headers=list(headers.items()))
    events = [head, *(h11.Data(data=piece) for piece in reply.pieces)]
    for event in events:
        await stream.send_all(connection.send(event) or b"")
    if reply.held:
        await stream.receive_some(1)
    if reply.cut or reply.held:
        return False
    await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
    return connection.our_state is h11.DONE


@asynccontextmanager
async def running_model_server(answer: Answer) -> AsyncIterator[ModelServer]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        server = ModelServer(f"http://127.0.0.1:{port}", answer)

        async def handle(stream: trio.SocketStream) -> None:
            try:
                await server.serve(stream)
            except (trio.BrokenResourceError, h11.RemoteProtocolError):
                server.left.set()

        nursery.start_soon(trio.serve_listeners, handle, listeners)
        yield server
        nursery.cancel_scope.cancel()
