"""Posting and reading frames of tabs."""

import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from common.api.tabs import MAX_TAB_FRAME_BYTES
from common.scalars import base64_of, hex_of
from svc.core.clock import ServerClock
from svc.core.retries import RetryPolicy
from svc.errors import ConnectionFailed, InvalidRequest
from svc.wire.tabs import TabRoutes, bearer_caller
from svc.wire.transport import Transport

JOB_ID = bytes(31) + b"\x07"
FRAME = b"\x03" + bytes(40)


class Stream(httpx.AsyncByteStream):
    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


def routes(answer: Callable[[httpx.Request], httpx.Response]) -> TabRoutes:
    http = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://coordinator")
    return TabRoutes(Transport(http, ServerClock(), RetryPolicy(max_retries=0)), bearer_caller("secret"))


def stream_of(*pieces: bytes) -> TabRoutes:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == f"/v1/tabs/{hex_of(JOB_ID)}/messages"
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Stream(*pieces))

    return routes(answer)


async def read_all(tabs: TabRoutes) -> list[bytes]:
    async with tabs.frames(JOB_ID) as frames:
        return [frame async for frame in frames]


async def test_post_returns_the_refused_tabs() -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        outcome = {"refused": [{"job_id": hex_of(JOB_ID), "code": "mailbox_full"}]}
        return httpx.Response(200, stream=Stream(json.dumps(outcome).encode()))

    outcome = await routes(answer).post([(JOB_ID, FRAME)])
    assert [(each.job_id, each.code) for each in outcome.refused] == [(hex_of(JOB_ID), "mailbox_full")]
    assert requests[0].headers["authorization"] == "Bearer secret"
    assert json.loads(requests[0].content) == {"messages": [{"job_id": hex_of(JOB_ID), "body": base64_of(FRAME)}]}


async def test_frames_end_with_the_tab() -> None:
    text = f": beat\n\nevent: frame\ndata: {base64_of(FRAME)}\n\nevent: end\ndata: {{}}\n\ndata: AAAA\n\n".encode()
    assert await read_all(stream_of(text[:30], text[30:])) == [FRAME]


@pytest.mark.parametrize(
    "event", [b"data: !\n\n", b"data: \xff\n\n", b"data: " + b"A" * (2 * MAX_TAB_FRAME_BYTES + 1), b"data: AB==\n\n"]
)
async def test_frames_reject_anything_else(event: bytes) -> None:
    with pytest.raises(ConnectionFailed):
        await read_all(stream_of(event))


async def test_frames_of_an_unclaimed_job_raise_the_error() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        error = {"type": "invalid_request_error", "message": "not claimed", "code": "not_claimed", "param": None}
        return httpx.Response(409, stream=Stream(json.dumps({"error": error}).encode()))

    with pytest.raises(InvalidRequest) as raised:
        await read_all(routes(answer))
    assert raised.value.code == "not_claimed"
