"""Posting and reading frames of tabs. A provider names its own address: only public ones are used by default."""

import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from common.api.tabs import MAX_TAB_FRAME_BYTES
from common.scalars import base64_of, hex_of
from common.tab.messages import DirectEndpoint
from svc.core.clock import ServerClock
from svc.core.retries import RetryPolicy
from svc.errors import ConnectionFailed, InvalidRequest
from svc.wire.direct import direct_routes
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


async def connect(url: str, use: str = "public", certificate: str = "") -> None:
    async with direct_routes(DirectEndpoint(url, certificate, "token"), use, ServerClock()):
        pass


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "[::1]",
        "[fe80::1]",
        "0.0.0.0",  # noqa: S104 - not bound to
        "224.0.0.1",
        "100.64.0.1",
        "[::ffff:10.1.2.3]",
        "[64:ff9b::10.1.2.3]",
        "[2002:a01:203::1]",
        "[fec0::1]",
    ],
)
async def test_private_addresses_are_not_used(host: str) -> None:
    with pytest.raises(ConnectionFailed, match="an address that is not public"):
        await connect(f"https://{host}:8443")


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1", "https://", "https://user@192.0.2.1", "https://192.0.2.1/?a=b", "ftp://a"]
)
async def test_other_urls_are_not_used(url: str) -> None:
    with pytest.raises(ConnectionFailed, match="https"):
        await connect(url, "any")


@pytest.mark.parametrize("certificate", ["", "not a certificate", "é"])
async def test_certificate_must_be_readable(certificate: str) -> None:
    with pytest.raises(ConnectionFailed, match="PEM"):
        await connect("https://127.0.0.1:1", "any", certificate)


async def test_url_with_control_characters_is_not_used() -> None:
    with pytest.raises(ConnectionFailed, match="printable"):
        await connect("https://127.0.0.1:1/\x01", "any")
