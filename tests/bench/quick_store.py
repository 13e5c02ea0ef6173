"""A pin store that answers at once from memory, in a separate process, so that the coordinator is measured.

It supports only the coordinator's requests. It checks no signatures, and content of more than one block gets the id of
its digest. `python -m tests.bench.quick_store PORT`
"""

import asyncio
import hashlib
import re
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from common.cid import Cid, Codec
from devnet.child import Program, running
from devnet.pins import BUCKET, REGION, PinStoreService
from devnet.ports import LOOPBACK

_ONE_BLOCK = 1 << 18
_RANGE = re.compile(rb"bytes=(\d+)-(\d*)")


@asynccontextmanager
async def quick_store(port: int, logs: Path) -> AsyncIterator[PinStoreService]:
    command = (sys.executable, "-m", "tests.bench.quick_store", str(port))
    async with running(Program("quick store", command, logs / "store.log")) as child:

        async def answers() -> bool:
            try:
                await (await anyio.connect_tcp(LOOPBACK, port)).aclose()
            except OSError:
                return False
            return True

        await child.wait_until(answers)
        url = f"http://{LOOPBACK}:{port}"
        yield PinStoreService("filebase", url, url, "key", "secret", BUCKET, REGION, (child,))


class _Connection(asyncio.Protocol):
    """One connection, one request after another."""

    def __init__(self, objects: dict[bytes, bytes], parts: dict[bytes, list[bytes]]) -> None:
        self._objects = objects
        self._parts = parts
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end])
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            size = int(length[1]) if length else 0
            if len(self._received) < end + 4 + size:
                return
            body = bytes(self._received[end + 4 : end + 4 + size])
            del self._received[: end + 4 + size]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        method, target, _ = head.split(b"\r\n", 1)[0].split(b" ")
        key, _, query = target.partition(b"?")
        upload = re.search(rb"uploadId=([^&]+)", query)
        if method == b"POST" and query == b"uploads=":
            name = secrets.token_hex(8).encode()
            self._parts[name] = []
            self._send(200, b"<UploadId>" + name + b"</UploadId>")
        elif method == b"PUT" and upload:
            self._parts[upload[1]].append(body)
            self._send(200, b"", b"etag: x\r\n")
        elif method == b"POST" and upload:
            self._store(key, b"".join(self._parts.pop(upload[1])))
        elif method == b"PUT":
            self._store(key, body)
        elif method == b"DELETE":
            self._objects.pop(key, None)
            self._send(204, b"")
        elif key not in self._objects:
            self._send(404, b"")
        else:
            self._give(self._objects[key], re.search(_RANGE, head))

    def _store(self, key: bytes, content: bytes) -> None:
        self._objects[key] = content
        self._send(200, b"", _cid(content))

    def _give(self, content: bytes, wanted: "re.Match[bytes] | None") -> None:
        if wanted is None:
            self._send(200, content, _cid(content))
            return
        first, last = int(wanted[1]), int(wanted[2]) if wanted[2] else len(content) - 1
        span = f"content-range: bytes {first}-{last}/{len(content)}\r\n".encode()
        self._send(206, content[first : last + 1], span)

    def _send(self, status: int, body: bytes, headers: bytes = b"") -> None:
        if self._transport is not None:
            head = f"HTTP/1.1 {status} -\r\ncontent-length: {len(body)}\r\n".encode()
            self._transport.write(head + headers + b"\r\n" + body)


def _cid(content: bytes) -> bytes:
    codec: Codec = "raw" if len(content) <= _ONE_BLOCK else "dag-pb"
    return f"x-amz-meta-cid: {Cid(codec, hashlib.sha256(content).digest())}\r\n".encode()


async def _main(port: int) -> None:
    objects: dict[bytes, bytes] = {}
    parts: dict[bytes, list[bytes]] = {}
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(objects, parts), LOOPBACK, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
