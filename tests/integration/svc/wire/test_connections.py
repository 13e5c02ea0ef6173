"""HTTP connections of svc and svcd, with servers that send exactly the bytes of a test."""

import io
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from svc.wire import connections
from svc.wire.answers import open_response, read_body
from svc.wire.connections import open_client

pytestmark = pytest.mark.trio

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
# Made for these tests by `openssl req -x509`, valid for a hundred years.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgt8g/1ogV3yASVIef
+hDsniurnm1L5kS452D7ySo3PUOhRANCAATHXglkfj36W90nJ0GWHqAI4fQiLitL
oojYdHRkgU3TWcwNNmSVv+nJqdbfN6qNrWLpD4gsX5g+xD7z7WhwgvzN
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBjzCCATagAwIBAgIUT3M4v9cieflxxM9ealWfa9pg1e8wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyMjIxMzEwNloYDzIxMjYxMDI5
MjEzMTA2WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATHXglkfj36W90nJ0GWHqAI4fQiLitLoojYdHRkgU3TWcwNNmSVv+nJ
qdbfN6qNrWLpD4gsX5g+xD7z7WhwgvzNo2QwYjAdBgNVHQ4EFgQUBPifbgl+wwMf
xccR1LmDj0ujFD0wHwYDVR0jBBgwFoAUBPifbgl+wwMfxccR1LmDj0ujFD0wDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0cAMEQC
IBEmGSBpSO0YwxQmOH5F2K5b51948IVBxWmK58YnPyhpAiBkmlF0vuxqtPiKKfIA
l5omlueWUiPw/YVBSlb5ZhViLA==
-----END CERTIFICATE-----
"""
Stream = trio.abc.Stream
Behaviour = Callable[[Stream], Awaitable[None]]


async def received(stream: Stream, until: bytes = b"\r\n\r\n") -> bytes:
    """Return the bytes up to the end of a head. Empty if the client has closed."""
    data = b""
    while until not in data and (piece := await stream.receive_some(65_536)):
        data += bytes(piece)
    return data


def answering(*answers: bytes) -> Behaviour:
    """Answer the requests of a connection with these responses in order, and then close."""

    async def serve(stream: Stream) -> None:
        for answer in answers:
            if not await received(stream):
                return
            await stream.send_all(answer)

    return serve


@attrs.define
class Server:
    url: str
    connections: int = 0


@asynccontextmanager
async def serving(*behaviours: Behaviour, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Serve each new connection with the next behaviour. The last one repeats."""
    async with trio.open_nursery() as nursery:
        server = Server("")

        async def handle(stream: trio.SocketStream) -> None:
            behaviour = behaviours[min(server.connections, len(behaviours) - 1)]
            server.connections += 1
            spoken: Stream = stream if tls is None else trio.SSLStream(stream, tls, server_side=True)
            async with stream:
                with suppress(trio.BrokenResourceError, ssl.SSLError):  # the test looks only at the client's end
                    await behaviour(spoken)

        (listener,) = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        scheme = "http" if tls is None else "https"
        server.url = f"{scheme}://127.0.0.1:{listener.socket.getsockname()[1]}"
        yield server
        nursery.cancel_scope.cancel()


def client(read: float | None = 5.0) -> httpx.AsyncClient:
    return open_client(timeout=httpx.Timeout(5, read=read))


async def read(http: httpx.AsyncClient, url: str) -> bytes:
    async with open_response(http, "GET", url) as response:
        return await read_body(response)


async def test_sequential_requests_share_a_connection() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    early = b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with serving(answering(OK, chunked, early, empty, OK)) as server, client() as http:
        answers = [await http.post(server.url, json={"n": n}) for n in range(5)]
    assert [(answer.status_code, answer.content) for answer in answers] == [
        (200, b"ok"),
        (200, b"ok"),
        (200, b"ok"),
        (204, b""),
        (200, b"ok"),
    ]
    assert server.connections == 1


async def test_least_recently_used_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway may redirect to any number of hosts."""
    monkeypatch.setattr(connections, "_MAX_IDLE_SERVERS", 2)
    left = trio.Event()

    async def until_left(stream: Stream) -> None:
        await answering(OK)(stream)
        assert not await received(stream)
        left.set()

    async with (
        serving(until_left) as first,
        serving(answering(OK, OK)) as second,
        serving(answering(OK)) as third,
        client() as http,
    ):
        for server in (first, second, third):
            await http.get(server.url)
        with trio.fail_after(5):
            await left.wait()
        await http.get(second.url)
        assert second.connections == 1


async def test_idle_connections_to_a_server_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MAX_IDLE_CONNECTIONS_PER_SERVER", 1)
    left = trio.Event()

    async def until_left(stream: Stream) -> None:
        await answering(OK)(stream)
        assert not await received(stream)
        left.set()

    async with serving(until_left, answering(OK, OK)) as server, client() as http:
        async with open_response(http, "GET", server.url) as one, open_response(http, "GET", server.url) as other:
            assert [await read_body(one), await read_body(other)] == [b"ok", b"ok"]
        await http.get(server.url)
        assert server.connections == 2
        with trio.fail_after(5):
            await left.wait()


async def test_request_is_sent_whole_with_a_body_in_pieces() -> None:
    heard: list[bytes] = []

    async def serve(stream: Stream) -> None:
        heard.append(await received(stream, b"\r\n0\r\n\r\n"))
        await stream.send_all(OK)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async with serving(serve) as server, client() as http:
        await http.post(f"{server.url}/path?q=1", content=pieces(), headers={"x-name": "value"})
    head, _, body = heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /path?q=1 HTTP/1.1\r\n")
    assert b"x-name: value" in head.lower()
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_stale_connection_costs_no_request() -> None:
    closed = trio.Event()

    async def once(stream: Stream) -> None:
        await answering(OK)(stream)
        await stream.aclose()
        closed.set()

    async with serving(once) as server, client() as http:
        await http.get(server.url)
        await closed.wait()
        assert (await http.get(server.url)).content == b"ok"
        assert server.connections == 2


async def test_connection_of_an_unread_response_is_not_reused() -> None:
    endless = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\nsome", OK)
    async with serving(endless, answering(OK)) as server, client() as http:
        async with http.stream("GET", server.url) as answer:
            assert answer.status_code == 200
        assert (await http.get(server.url)).content == b"ok"
        assert server.connections == 2


async def test_response_ended_by_close_is_complete() -> None:
    async with serving(answering(b"HTTP/1.1 200 OK\r\n\r\nall of it"), answering(OK)) as server, client() as http:
        assert (await http.get(server.url)).content == b"all of it"
        assert (await http.get(server.url)).content == b"ok"


async def test_refusal_that_comes_before_the_whole_request_is_heard() -> None:
    async def serve(stream: Stream) -> None:
        await received(stream)
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\nconnection: close\r\n\r\nlong")
        await stream.aclose()

    async with serving(serve) as server, client() as http:
        answer = await http.post(server.url, files={"file": ("result", io.BytesIO(bytes(1 << 24)))})
    assert (answer.status_code, answer.content) == (413, b"long")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-le", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort", httpx.RemoteProtocolError),
        (b"220 mail.example ESMTP\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", httpx.RemoteProtocolError),
    ],
    ids=["none", "half a head", "half a body", "another protocol", "two lengths", "endless head"],
)
async def test_answer_that_is_none_is_an_error_of_the_network(answer: bytes, error: type[httpx.HTTPError]) -> None:
    async with serving(answering(answer)) as server, client() as http:
        with pytest.raises(error) as raised:
            await http.get(server.url)
        assert raised.value.request.url == server.url


async def test_silent_server_times_out_and_is_disconnected() -> None:
    async def silent(stream: Stream) -> None:
        await received(stream)
        await trio.sleep_forever()

    async with serving(silent, answering(OK)) as server, client(read=0.05) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.get(server.url)
        assert (await http.get(server.url)).content == b"ok"


async def test_request_that_is_cancelled_leaves_no_connection_behind() -> None:
    asked = trio.Event()

    async def silent(stream: Stream) -> None:
        await received(stream)
        asked.set()
        await trio.sleep_forever()

    async with serving(silent, answering(OK)) as server, client() as http:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(http.get, server.url)
            await asked.wait()
            nursery.cancel_scope.cancel()
        assert (await http.get(server.url)).content == b"ok"


async def test_server_that_is_not_there_is_an_error_of_the_connection() -> None:
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        async with client() as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(f"http://127.0.0.1:{unused.getsockname()[1]}")


async def test_address_that_is_not_of_http_is_refused() -> None:
    async with client() as http:
        with pytest.raises(httpx.UnsupportedProtocol):
            await http.get("ftp://127.0.0.1/")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Create a self-signed certificate for 127.0.0.1, with its key."""
    path = tmp_path / "server.pem"
    path.write_text(CERTIFICATE, encoding="ascii")
    return path


async def test_certificate_must_be_one_that_the_machine_trusts(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presented = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    presented.load_cert_chain(certificate)
    async with serving(answering(OK, OK), tls=presented) as server:
        async with client() as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(server.url)
        trusted = ssl.create_default_context(cafile=certificate)
        monkeypatch.setattr(httpx, "create_ssl_context", lambda **_: trusted)
        async with client() as http:
            for _ in range(2):
                assert (await http.get(server.url)).content == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize("url", ["http://a..b/", f"http://{'a' * 64}.test/", "https://.127.0.0.1/"])
async def test_name_that_cannot_be_encoded_is_a_failed_connection(url: str) -> None:
    """A gateway may redirect to any address."""
    async with open_client() as http:
        with pytest.raises(httpx.RequestError):
            await read(http, url)


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLError("decryption failed or bad record mac"),
        OSError("no buffer space"),
        trio.BrokenResourceError(),
        trio.ClosedResourceError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_error_below_http_is_one_of_httpx(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    async def silent(_: Stream) -> None:
        await trio.sleep_forever()

    async with serving(silent) as server, open_client() as http:
        monkeypatch.setattr(trio.SocketStream, "receive_some", fail)
        with pytest.raises(httpx.RequestError):
            await read(http, server.url)
