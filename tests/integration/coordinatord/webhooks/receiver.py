"""A webhook receiver on loopback that stores requests and answers as the test sets."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs
from aiohttp import web


@attrs.frozen
class Got:
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@attrs.define
class Receiver:
    """`status` applies to every response, or `script` to the next ones. With `held`, responses wait until it is set."""

    url: str = ""
    status: int = 200
    answer_headers: dict[str, str] = attrs.field(factory=dict)
    script: list[int] = attrs.field(factory=list)
    held: asyncio.Event | None = None
    got: list[Got] = attrs.field(factory=list)
    most_at_once: int = 0
    _now: int = 0
    _came: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.got.append(Got({name.lower(): value for name, value in request.headers.items()}, body))
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        self._came.set()
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self._now -= 1
        status = self.script.pop(0) if self.script else self.status
        return web.Response(status=status, headers=self.answer_headers)

    async def heard(self, many: int, within: float = 20) -> list[Got]:
        """Wait for this many requests, and return all of them."""
        with anyio.fail_after(within):
            while len(self.got) < many:
                self._came.clear()
                await self._came.wait()
        return self.got


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = web.Server(receiver.handle, access_log=None)  # type: ignore[arg-type] # a BaseRequest does as well
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, host, 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    receiver.url = f"http{'s' if tls else ''}://{'localhost' if tls else host}:{port}/hook"
    try:
        yield receiver
    finally:
        if receiver.held is not None:
            receiver.held.set()
        await runner.cleanup()
