"""Programs that send half a request, or do not read their answer."""

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from svc.serve import exchange
from svc.serve.exchange import (
    ClientDisconnected,
    EventReply,
    LocalRequest,
    WholeReply,
    send_event_reply,
    send_whole_reply,
)
from svc.serve.problems import Problem

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_SILENCE_TIMEOUT_S", 0.01)


class Caller:
    """Reads only the headers of the answer."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def receive(self) -> Any:
        await anyio.sleep_forever()

    async def send(self, message: Any) -> None:
        if message["type"] != "http.response.start":
            await anyio.sleep_forever()

    async def on_sent(self) -> None:
        self.ended.append("sent")

    def on_closed(self) -> None:
        self.ended.append("closed")


async def test_body_that_does_not_come_is_a_408() -> None:
    key: Any = None
    request = LocalRequest("POST", "/v1/files", {}, {}, key, "req_1", Caller().receive)
    with pytest.raises(Problem) as refused:
        await request.read_body(1000)
    assert refused.value.status == 408


async def test_unread_answer_is_given_up() -> None:
    caller = Caller()
    reply = WholeReply(b"answer", on_sent=caller.on_sent, on_closed=caller.on_closed)
    with pytest.raises(ClientDisconnected):
        await send_whole_reply(reply, {}, caller.send)
    assert caller.ended == ["closed"]


async def test_unread_stream_is_given_up() -> None:
    caller = Caller()

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"

    reply = EventReply(events(), {}, caller.on_sent, caller.on_closed)
    await send_event_reply(reply, {}, caller.receive, caller.send)
    assert caller.ended == ["closed"]
