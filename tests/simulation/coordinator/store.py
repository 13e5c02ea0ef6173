"""The pin store: in-memory S3 behind the coordinator's real requests."""

import asyncio
import base64
import random
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import httpx

from common.cid import cid_of
from coordinatord.base.http_client import HttpClient, HttpResponse, NoResponse
from tests.simulation.coordinator.faults import Faults
from tests.support.fakes.streamed import streamed

_FOUND: Final = 200
_MISSING: Final = 404
_UNSOUND_SHARE: Final = 0.2  # of a gateway's responses


class SimulatedStore:
    def __init__(self, faults: Faults, seed: object) -> None:
        self.objects: dict[str, bytes] = {}
        self.pinned: dict[str, bytes] = {}  # by content id: everything ever stored
        self._faults = faults
        self._chance = random.Random(f"store {seed}")

    @asynccontextmanager
    async def open_http(self, **_: object) -> AsyncIterator[HttpClient]:
        """Replaces `coordinatord.base.http_client.open_http`."""
        owner = self._faults.owner()

        @asynccontextmanager
        async def http(
            method: str, url: str, headers: Mapping[str, str], content: Sequence[bytes] | AsyncIterable[bytes] = ()
        ) -> AsyncIterator[HttpResponse]:
            assert not isinstance(content, AsyncIterable), "nothing here is uploaded in parts"
            await asyncio.sleep(self._chance.expovariate(1 / 0.02))
            if not self._faults.is_live(owner):
                raise NoResponse("this process is no more")
            fault = self._faults.due("store") if method == "PUT" else None
            if fault is not None:
                self._faults.trace.add(f"store meets {fault.kind}")
            match None if fault is None else fault.kind:
                case "unreached":
                    raise NoResponse("unreached")
                case "unavailable":
                    yield HttpResponse(503, {}, _pieces(b""))
                    return
                case "late":
                    await asyncio.sleep(5)
            status, told, body = self._answer(method, urlsplit(url).path, b"".join(content))
            if fault is not None and fault.kind == "lost":
                raise NoResponse("lost")
            if fault is not None and fault.kind == "wrong":
                told = {"x-amz-meta-cid": str(cid_of(b"something else"))}
            await asyncio.sleep(self._chance.expovariate(1 / 0.02))
            yield HttpResponse(status, told, _pieces(body))

        yield http

    async def served(self, request: httpx.Request, *, is_sound: bool) -> httpx.Response:
        """Answer as a gateway. It has everything ever stored, unless a fault hides it."""
        await asyncio.sleep(self._chance.expovariate(1 / 0.02))
        if not is_sound and self._chance.random() < _UNSOUND_SHARE:
            if self._chance.random() < 0.5:
                raise httpx.ConnectError("the gateway is away")
            return httpx.Response(self._chance.choice((404, 503)))
        content = self.pinned.get(request.url.path.removeprefix("/ipfs/"))
        return httpx.Response(404) if content is None else streamed(httpx.Response(200, content=content))

    def sealed_in(self, settle: Mapping[str, object]) -> bytes | None:
        """Return the result that a settle names. None if it was never stored."""
        if "result_cid" in settle:
            return self.pinned.get(str(settle["result_cid"]))
        return base64.b64decode(str(settle["result"]), validate=True)

    def _answer(self, method: str, key: str, content: bytes) -> tuple[int, dict[str, str], bytes]:
        if method == "PUT":
            self.objects[key] = content
            cid = str(cid_of(content))
            self.pinned[cid] = content
            return _FOUND, {"x-amz-meta-cid": cid}, b""
        if method == "DELETE":
            self.objects.pop(key, None)
            return 204, {}, b""
        if key not in self.objects:
            return _MISSING, {}, b""
        return _FOUND, {"x-amz-meta-cid": str(cid_of(self.objects[key]))}, self.objects[key]


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    if content:
        yield content
