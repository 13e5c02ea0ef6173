"""The documented nginx before the server, on loopback. NGINX names another binary than that of `make programs`."""

import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from coordinatord.http.server.connection import Timeouts
from devnet.ports import LOOPBACK, is_port_free, pick_free
from tests.integration.coordinatord.server.serving import Raw, Served, serving
from tests.support.programs.found import program

CONF = Path(__file__).parents[4] / "config" / "nginx" / "coordinatord.conf"
NGINX = os.environ.get("NGINX") or program("nginx")


def local(text: str, *, proxy: int, server: int) -> str:
    """Change only addresses (to loopback), TLS (off) and timeouts (shorter)."""
    text = text.replace("127.0.0.1:8402", f"{LOOPBACK}:{server}")
    text = text.replace("client_header_timeout 10s", "client_header_timeout 1s")
    text = text.replace("client_body_timeout 20s", "client_body_timeout 1s")
    text = re.sub(r"\n *(ssl_\w+|listen \[::\]:\d+)[^;]*;", "", text)
    text = re.sub(r"listen 80;", f"listen {LOOPBACK}:{pick_free()};", text)
    return re.sub(r"listen 443[^;]*;", f"listen {LOOPBACK}:{proxy};", text)


def of_one_connection_a_caller(text: str) -> str:
    """Also let callers set their own address."""
    text = text.replace("limit_conn coordinatord_callers 128;", "limit_conn coordinatord_callers 1;")
    return text.replace("server_name", "set_real_ip_from 127.0.0.1; real_ip_header x-real; server_name")


def running(server: int, tmp_path: Path, changed: Callable[[str], str]) -> Iterator[int]:
    """Run a proxy in front of the server at this port. Yield the proxy's port."""
    if NGINX is None:
        pytest.skip("no nginx here; `make programs` fetches it")
    port = pick_free()
    site = tmp_path / "coordinatord.conf"
    text = local(CONF.read_text(encoding="utf-8"), proxy=port, server=server)
    site.write_text(changed(text), encoding="utf-8")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    main = tmp_path / "nginx.conf"
    main.write_text(
        f"daemon off; master_process off; pid {tmp_path}/pid; error_log stderr; events {{}}"
        f" http {{ access_log off; {places} include {site}; }}",
        encoding="utf-8",
    )
    command = (NGINX, "-p", str(tmp_path), "-c", str(main))
    subprocess.run((*command, "-t"), check=True, capture_output=True)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_listening(port)
            yield port
        finally:
            process.terminate()


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + 10
    while is_port_free(port):
        assert time.monotonic() < deadline, "nginx does not listen"
        time.sleep(0.02)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(Timeouts()) as served:
        yield served


@pytest.fixture
def proxy(served: Served, tmp_path: Path) -> Iterator[int]:
    yield from running(served.port, tmp_path, lambda text: text)


@pytest.fixture
def strict_proxy(served: Served, tmp_path: Path) -> Iterator[int]:
    yield from running(served.port, tmp_path, of_one_connection_a_caller)


async def told(port: int, message: bytes) -> bytes:
    async with await anyio.connect_tcp(LOOPBACK, port) as stream:
        await stream.send(message)
        return await Raw(stream).rest()


async def test_honest_request_passes(served: Served, proxy: int) -> None:
    answer = await told(proxy, b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"{}")
    assert served.paths == ["/hello"]


async def test_incomplete_requests_never_reach_the_coordinator(served: Served, proxy: int) -> None:
    assert not (await told(proxy, b"GET /hello HTTP/1.1\r\nhost: x\r\nx-a: ")).startswith(b"HTTP/1.1 200")
    stalled = b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    assert not (await told(proxy, stalled)).startswith(b"HTTP/1.1 200")
    assert served.paths == []


async def test_message_of_two_lengths_smuggles_nothing_past_the_proxy(served: Served, proxy: int) -> None:
    message = (
        b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 36\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    await told(proxy, message)
    assert "/hello" not in served.paths


async def test_upgrade_to_h2c_is_not_passed_on(served: Served, proxy: int) -> None:
    asked = b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n\r\n"
    assert (await told(proxy, asked)).startswith(b"HTTP/1.1 200 ")
    assert served.paths == ["/hello"]


async def test_addresses_of_one_ipv6_network_are_one_caller(served: Served, strict_proxy: int) -> None:
    def get(path: str, address: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nhost: x\r\nx-real: {address}\r\nconnection: close\r\n\r\n".encode()

    async with await anyio.connect_tcp(LOOPBACK, strict_proxy) as busy:
        await busy.send(get("/wait", "2001:db8:1:2::1"))
        await served.waiting.wait()
        same = await told(strict_proxy, get("/hello", "2001:db8:1:2:ffff::2"))
        other = await told(strict_proxy, get("/hello", "2001:db8:1:3::1"))
        served.released.set()
    assert (same[9:12], other[9:12]) == (b"429", b"200")
