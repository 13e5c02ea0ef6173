"""Attacks on sockets and memory: bodies that never come, connections that say nothing, heads of a byte at a time, and
messages that can be read in two ways."""

from contextlib import AsyncExitStack
from typing import Final

import anyio
import attrs
from anyio.abc import SocketStream

from tests.integration.coordinatord.scene.party import Party
from tests.soak.programs import ORIGIN
from tests.support.attacks.target import Target

_FORM: Final = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
_ORIGIN: Final = ORIGIN.encode()
_BETWEEN: Final = b"\r\nhost: x\r\norigin: " + _ORIGIN + b"\r\n"
# Messages by their oddity, each with the expected status.
_ODD: Final = {
    "folded header": (b"GET /healthz HTTP/1.1" + _BETWEEN + b"x-a: b\r\n c\r\n\r\n", b"400"),
    "bare LF": (b"GET /healthz HTTP/1.1" + _BETWEEN + b"x-a: b\n\r\n", b"400"),
    "two lengths": (b"POST /v1/jobs HTTP/1.1" + _BETWEEN + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}", b"400"),
    "whole address": (b"GET http://x/healthz HTTP/1.1" + _BETWEEN + b"connection: close\r\n\r\n", b"200"),
}
_LOOKS: Final = 10
_GONE: Final = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


async def _answer(stream: SocketStream) -> bytes:
    """Read until the other end closes. Empty if it closes without a response."""
    said = b""
    try:
        while True:
            said += await stream.receive()
    except _GONE:
        return said


@attrs.define
class SilentBodies:
    """Uploads that announce sixteen MiB and send little. `longest` is the longest time in seconds that one stayed
    open."""

    target: Target
    at_once: int = 8
    patience: float = 6.0
    name: str = "silent bodies"
    longest: float = 0.0
    _party: Party | None = None

    async def strike(self, _n: int) -> str:
        async with self.target.http() as http:
            self._party = self._party or await self.target.stranger(self.name, http)
            self._party.http = http
            if (refused := await self.target.sign_in(self._party)) is not None:
                return refused
        head = (
            f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._party.token}\r\n"
            f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {16 << 20}\r\n\r\n"
        ).encode()
        statuses: set[str] = set()

        async def hold() -> None:
            began = anyio.current_time()
            status = "held"
            try:
                async with await self.target.connect() as stream:
                    await stream.send(head + _FORM)
                    with anyio.move_on_after(self.patience):
                        status = (await _answer(stream)).partition(b"\r\n")[0][9:12].decode() or "closed"
            except _GONE:
                status = "closed"
            self.longest = max(self.longest, anyio.current_time() - began)
            statuses.add(status)

        async with anyio.create_task_group() as holding:
            for _ in range(self.at_once):
                holding.start_soon(hold)
        return " / ".join(sorted(statuses))


@attrs.define
class OddMessages:
    """Messages that two servers might parse differently, and one that only looks odd. Pages of an allowed origin must
    be able to read the refusal (`ORIGIN`, of the coordinators' CORS_ORIGINS)."""

    target: Target
    name: str = "odd messages"

    async def strike(self, n: int) -> str:
        odd, (message, status) = list(_ODD.items())[n % len(_ODD)]
        try:
            async with await self.target.connect() as stream:
                await stream.send(message)
                with anyio.move_on_after(10):
                    head, whole, _ = (await _answer(stream)).lower().partition(b"\r\n\r\n")
                    if not whole:  # killed by the server
                        return f"{odd} closed"
                    if head[9:12] not in (status, b"429", b"503"):
                        self.target.timeline.complain(f"{odd} was answered {head[:60]!r}")
                    if b"\r\naccess-control-allow-origin: " + _ORIGIN not in head:
                        self.target.timeline.complain(f"the answer to {odd} may not be read by an allowed origin")
                    return f"{odd} {head[9:12].decode()}"
        except _GONE:
            return f"{odd} closed"
        return f"{odd} held"


@attrs.define
class IdleConnections:
    """More connections than one caller may have, which send nothing or their heads a byte at a time. `most_open`: how
    many were still open when all had been made and given a moment."""

    target: Target
    at_once: int = 64
    moment: float = 1.0
    name: str = "idle connections"
    most_open: int = 0

    async def strike(self, _n: int) -> str:
        ended = 0

        async def hold(stream: SocketStream) -> None:
            nonlocal ended
            await _answer(stream)
            ended += 1

        async with AsyncExitStack() as stack, anyio.create_task_group() as holding:
            opened = 0
            for n in range(self.at_once):
                try:
                    stream = await stack.enter_async_context(await self.target.connect())
                    if n % 2:
                        await stream.send(b"GET / HTTP/1.1\r\nx-slow: " + b"a" * (n % 9))
                except _GONE:
                    continue
                opened += 1
                holding.start_soon(hold, stream)
            # On a busy machine, closed connections are noticed one after another.
            left = opened
            for _ in range(_LOOKS):
                await anyio.sleep(self.moment)
                before, left = left, opened - ended
                if left == before:
                    break
            self.most_open = max(self.most_open, left)
            holding.cancel_scope.cancel()
        return f"{'most' if left > self.at_once * 3 // 4 else 'some' if left else 'none'} left open"
