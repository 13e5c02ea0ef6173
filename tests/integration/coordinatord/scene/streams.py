"""Streams of a coordinator in this process, read over a socket, because the in-process transport waits for the
response's end."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import httpx

from devnet.ports import LOOPBACK
from tests.integration.coordinatord.scene.stage import Seen, Stage
from tests.integration.coordinatord.server.serving import serving_app


@attrs.frozen
class Message:
    """`data` is None for messages without data: the initial id, and heartbeats, which are comments."""

    name: str
    id: str
    data: Any


@attrs.define
class Stream:
    response: httpx.Response
    _rest: str = ""
    _pieces: AsyncIterator[str] | None = None

    async def next(self) -> Message:
        """Return the next message with data."""
        while (message := await self.block()).data is None:
            pass
        return message

    async def block(self) -> Message:
        with anyio.fail_after(30):
            pieces = self._pieces = self._pieces or self.response.aiter_text()
            while "\n\n" not in self._rest:
                self._rest += await anext(pieces)
        block, _, self._rest = self._rest.partition("\n\n")
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line.rstrip() != ":")
        data = lines.get("data")
        name = lines.get("event", "")
        # The base64 of a tab's frame is the only data that is not JSON.
        value = data if data is None or name == "frame" else json.loads(data)
        return Message(name, lines.get("id", ""), value)

    async def ended(self) -> str:
        """Read the rest of the body."""
        with anyio.fail_after(30):
            pieces = self._pieces = self._pieces or self.response.aiter_text()
            async for piece in pieces:
                self._rest += piece
        return self._rest


@attrs.frozen
class Streams:
    http: httpx.AsyncClient
    seen: list[Seen]

    @asynccontextmanager
    async def open(self, path: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[Stream]:
        async with self.http.stream("GET", path, headers=dict(headers or {})) as response:
            if response.is_error:
                await response.aread()
            self.seen.append(Seen(f"GET {path.partition('?')[0]}", response.status_code, _code(response)))
            yield Stream(response)


def _code(response: httpx.Response) -> str | None:
    if not response.is_error:
        return None
    error = response.json()["error"]
    return str(error["code"] or error["type"])


@asynccontextmanager
async def streams_of(stage: Stage, seen: list[Seen]) -> AsyncIterator[Streams]:
    async with (
        serving_app(stage.application, grace=1) as port,
        httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", trust_env=False, timeout=30) as http,
    ):
        yield Streams(http, seen)
        stage.ground.events.close()
