"""Strangers who open connections and bodies and leave it at that, at a coordinator as operators run it: each of its
settings for them takes effect."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
import httpx
import pytest
from anyio.abc import SocketStream

from devnet.ports import LOOPBACK
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.server.serving import ORIGIN, Raw

SETTINGS = {
    "body_stall_timeout_s": 2,
    "connections_per_caller": 10,
    "CORS_ORIGINS": ORIGIN,
    "uploads_per_caller": 2,
    "uploads_per_wallet": 1,
}
FORM = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'


def silent_upload(party: Party) -> bytes:
    """Announce an upload of sixteen MiB, and send little."""
    return (
        f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {party.token}\r\n"
        f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {16 << 20}\r\n\r\n"
    ).encode() + FORM


async def refused_beside_a_silent_one(
    party: Party, connected: Callable[[], Awaitable[SocketStream]]
) -> tuple[SocketStream, httpx.Response]:
    """Upload next to a silent upload, and return the response. On a slow machine the silent upload may end first, and
    then another one is started."""
    while True:
        silent = await connected()
        await silent.send(silent_upload(party))
        for _ in range(10):
            answer = await party.upload("batch", b"{}")
            if answer.status_code != 200:
                return silent, answer


@pytest.mark.long
async def test_silent_uploads_and_connections_are_bounded(setup: MarketSetup) -> None:
    async with AsyncExitStack() as stack, setup.running_coordinator(**SETTINGS) as (coordinator, http):

        async def connected() -> SocketStream:
            return await stack.enter_async_context(await anyio.connect_tcp(LOOPBACK, coordinator.port))

        parties = [setup.party(http, "provider"), setup.party(http)]
        for party in parties:
            await party.sign_in()
        assert (await parties[1].upload("batch", b"{}")).status_code == 200

        silent, busy = await refused_beside_a_silent_one(parties[0], connected)
        assert (busy.status_code, busy.json()["error"]["type"]) == (429, "busy")
        assert "one wallet may run at most 1 uploads" in busy.json()["error"]["message"]
        assert (await parties[1].upload("batch", b"{}")).status_code == 200
        assert (await Raw(silent).rest()).startswith(b"HTTP/1.1 408 ")

        silent = await connected()
        await silent.send(b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert (await Raw(silent).rest()).startswith(b"HTTP/1.1 408 ")

        folded = await connected()
        await folded.send(f"GET / HTTP/1.1\r\nhost: x\r\norigin: {ORIGIN}\r\nx-a: b\r\n c\r\n\r\n".encode())
        assert f"\r\naccess-control-allow-origin: {ORIGIN}\r\n".encode() in await Raw(folded).rest()

        idle = [await connected() for _ in range(30)]
        for given_way in idle[:20]:  # all of the thirty except the last ten
            assert await Raw(given_way).rest() == b""
        assert (await http.get("/healthz")).status_code == 200
