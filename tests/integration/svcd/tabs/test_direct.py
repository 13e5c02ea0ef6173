"""The direct endpoint of tabs over real TLS, with a client as owners use it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from common.api.tabs import MAX_TAB_POST_BYTES
from common.daemon.process import Fatal
from common.scalars import base64_of, hex_of
from svc.wire.tabs import MESSAGES_PATH, TabRoutes, bearer_caller
from svc.wire.transport import ApiError, RetryPolicy, Transport
from svcd.base.clock import Clock
from svcd.journal.slots import Slots
from svcd.tabs.certificate import client_context, find_certificate_fault
from svcd.tabs.direct import (
    MAX_CONNECTIONS_PER_TAB,
    MAX_UNAUTHENTICATED_CONNECTIONS,
    UNAUTHENTICATED_TIMEOUT_S,
    DirectServer,
    open_server,
)
from svcd.tabs.open_tabs import OpenTab, OpenTabs
from tests.integration.svcd.tabs.certificates import settings_for

pytestmark = pytest.mark.trio

JOB, OTHER = b"\x01" * 32, b"\x02" * 32


@attrs.frozen
class Served:
    server: DirectServer
    tab: OpenTab
    url: str

    @asynccontextmanager
    async def routes(self, token: str | None = None) -> AsyncIterator[TabRoutes]:
        context = client_context(self.server.published_endpoint.certificate)
        async with httpx.AsyncClient(base_url=self.url, verify=context) as http:
            transport = Transport(http, Clock(), RetryPolicy(max_retries=0))
            yield TabRoutes(transport, bearer_caller(self.tab.token if token is None else token))


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    settings = settings_for(folder)
    tabs = OpenTabs(Slots({"demo/text": 8}))
    with open_server(settings) as server, tabs.open_tab(JOB, b"\x0a" * 20, "demo/text") as tab:
        assert server is not None
        assert tab is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, tabs)
            yield Served(server, tab, settings.url)
            nursery.cancel_scope.cancel()


async def test_frames_go_both_ways(tmp_path: Path) -> None:
    async with served(tmp_path) as one, one.routes() as routes, routes.frames(JOB) as frames:
        for number in range(3):  # on one connection
            answer = await routes.post([(JOB, b"%d" % number), (OTHER, b"not mine")])
            assert [(refusal.job_id, refusal.code) for refusal in answer.refused] == [(hex_of(OTHER), "not_party")]
            assert await one.tab.inbox.receive() == ("direct", b"%d" % number)
        with trio.fail_after(10):
            await one.tab.outbox.send([b"x" * 65_000, b"second"])
            assert [await anext(frames), await anext(frames)] == [b"x" * 65_000, b"second"]
            one.tab.outbox.close()
            assert [frame async for frame in frames] == []


async def test_newer_stream_replaces_the_older(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as one,
        one.routes() as routes,
        routes.frames(JOB) as older,
        routes.frames(JOB) as newer,
    ):
        with trio.fail_after(10):
            assert [frame async for frame in older] == []
            await one.tab.outbox.send([b"frame"])
            assert await anext(newer) == b"frame"


@pytest.mark.parametrize("token", ["x", "guess"])
async def test_wrong_token_is_refused_before_the_body(token: str, tmp_path: Path) -> None:
    async with served(tmp_path) as one, one.routes(token) as routes:
        with pytest.raises(ApiError) as refused:
            await routes.post([(JOB, b"frame")])
        assert refused.value.status == 401
        with pytest.raises(ApiError):
            async with routes.frames(JOB):
                pass


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b'{"messages":[]}', 400),
        (b'{"messages":[{"job_id":"0x01","body":""}]}', 400),
        (b'{"messages":[{"job_id":"' + hex_of(JOB).encode() + b'","body":"!"}]}', 400),
    ],
    ids=["not JSON", "empty", "bad id", "bad base64"],
)
async def test_malformed_post_is_refused(content: bytes, status: int, tmp_path: Path) -> None:
    async with served(tmp_path) as one, one.routes() as routes:
        headers = {"authorization": f"Bearer {one.tab.token}"}
        answer = await routes.transport.http.post(MESSAGES_PATH, content=content, headers=headers)
        assert answer.status_code == status
        assert (await routes.post([(JOB, b"frame")])).refused == []


async def test_large_post_is_refused_before_its_body(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        context = client_context(one.server.published_endpoint.certificate)
        port = one.server.listening_socket.getsockname()[1]
        stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context, https_compatible=True)
        head = f"POST {MESSAGES_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {one.tab.token}\r\n"
        await stream.send_all(f"{head}content-length: {MAX_TAB_POST_BYTES + 1}\r\n\r\n".encode())
        with trio.fail_after(10):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 413 ")
        await stream.aclose()


@pytest.mark.long
async def test_strangers_keep_no_owner_out_for_long(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        port = one.server.listening_socket.getsockname()[1]
        with trio.fail_after(30):
            idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2 * MAX_UNAUTHENTICATED_CONNECTIONS)]
            await trio.sleep(UNAUTHENTICATED_TIMEOUT_S + 1)
            async with one.routes() as routes:
                assert (await routes.post([(JOB, b"frame")])).refused == []
            for stream in idle:
                assert await stream.receive_some() == b""  # closed
                await stream.aclose()


async def test_owner_has_a_few_connections(tmp_path: Path) -> None:
    body = {"messages": [{"job_id": hex_of(JOB), "body": base64_of(b"frame")}]}
    async with served(tmp_path) as one:
        context, statuses, clients = client_context(one.server.published_endpoint.certificate), [], []
        for _ in range(MAX_CONNECTIONS_PER_TAB + 1):
            http = httpx.AsyncClient(base_url=one.url, verify=context)
            clients.append(http)
            answer = await http.post(MESSAGES_PATH, json=body, headers={"authorization": f"Bearer {one.tab.token}"})
            statuses.append(answer.status_code)
        for http in clients:
            await http.aclose()
        assert statuses == [200] * MAX_CONNECTIONS_PER_TAB + [401]


async def test_certificate_is_checked_for_its_address_and_time(tmp_path: Path) -> None:
    assert find_certificate_fault(settings_for(tmp_path)) is None
    assert "mismatch" in str(find_certificate_fault(settings_for(tmp_path, "DNS:other.example")))
    assert "expired" in str(find_certificate_fault(settings_for(tmp_path, days=-1)))


async def test_key_of_another_certificate_is_fatal(tmp_path: Path) -> None:
    settings, other = settings_for(tmp_path), settings_for(tmp_path, "DNS:other.example")
    with (
        pytest.raises(Fatal, match=r"tabs\.private_key"),
        open_server(attrs.evolve(settings, private_key=other.private_key)),
    ):
        pass
