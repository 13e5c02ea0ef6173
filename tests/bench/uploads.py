"""An upload of 200 MiB through the route, compared with keccak alone over as many bytes.

The server is the coordinator's, with every layer of the API and a real database, in a separate process. The store, in
another process, counts parts and drops them. On two cores, hashing and writing there would distort the measurement. The
client sends from memory over a plain socket.

The last row is the growth of the server's resident memory during the upload, compared with the 16 MiB that one upload
may hold.
"""

import hashlib
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs
from anyio.from_thread import start_blocking_portal

from common.keccak import Keccak256
from coordinatord.http.uploads import HELD_BYTES
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.database.migration import migrate
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.http_processes import server
from tests.bench.row import Row, interleaved

SIZE: Final = 200 << 20
ROUNDS: Final = 5
_PIECE: Final = 1 << 16
_HEAD: Final = b"\x01" + bytes(80) + bytes(24)  # of a container: version, seed wrap, stream header
_BOUNDARY: Final = hashlib.sha256(b"boundary").hexdigest()[:32].encode()  # as long as common clients make it
_SMALL: Final = 1 << 20


def rows() -> list[Row]:
    with ExitStack() as stack:
        url = stack.enter_context(_database())
        store = stack.enter_context(_store())
        port = pick_free()
        environment = {"DATABASE_URL": url, "STORE": f"http://127.0.0.1:{store}"}
        pid = stack.enter_context(server("uploads", port, environment))
        _Upload(port, _SMALL).send()  # a process's first upload loads modules, which do not count
        before = _resident(pid)
        highest = _Highest(pid)
        stack.enter_context(highest.watching())
        upload = _Upload(port, SIZE)
        grown: list[float] = []

        def watched() -> int:
            highest.bytes = 0
            sent = upload.send()
            grown.append((max(highest.bytes, _resident(pid)) - before) / (1 << 20))
            return sent

        rates = interleaved({"keccak": _keccak, "upload": watched}, ROUNDS)
    held = HELD_BYTES / (1 << 20)
    return [
        rates.row("upload of 200 MiB", "upload", "keccak", "keccak alone", target=0.6, unit="MB/s", scale=1e6),
        Row.of(
            f"most memory of {len(grown)} uploads of 200 MiB, one after another",
            grown,
            "MiB",
            f"{held:g} MiB, what one may hold",
            held,
            at_most=1,
            by=max,
        ),
    ]


def _keccak() -> int:
    digest, piece = Keccak256(), bytes(_PIECE)
    for _ in range(SIZE // _PIECE):
        digest.update(piece)
    digest.digest()
    return SIZE


class _Upload:
    def __init__(self, port: int, size: int) -> None:
        self._port, self._size = port, size
        part = b"--" + _BOUNDARY + b"\r\ncontent-disposition: form-data; "
        form = part + b'name="purpose"\r\n\r\ninput\r\n' + part + b'name="file"; filename="container"\r\n\r\n'
        closing = b"\r\n--" + _BOUNDARY + b"--\r\n"
        length = len(form) + size + len(closing)
        self._head = (
            f"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nauthorization: Bearer anybody\r\n"
            f"content-type: multipart/form-data; boundary={_BOUNDARY.decode()}\r\n\r\n"
        ).encode() + form
        self._closing = closing

    def send(self) -> int:
        piece = memoryview(bytes(1 << 20))
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.sendall(self._head + _HEAD)
            left = self._size - len(_HEAD)
            while left:
                connection.sendall(piece[:left])
                left -= min(left, len(piece))
            connection.sendall(self._closing)
            answer = connection.recv(1 << 16)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the upload was answered {answer!r}")
        return self._size


@attrs.define
class _Highest:
    """The most memory that a process had while it was watched."""

    pid: int
    bytes: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(0.02):
                self.bytes = max(self.bytes, _resident(self.pid))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


@contextmanager
def _store() -> Iterator[int]:
    port = pick_free()
    command = [sys.executable, "-m", "tests.bench.taking_store", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        try:
            yield port
        finally:
            process.kill()


@contextmanager
def _database() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory, start_blocking_portal("asyncio") as portal:
        folders = [Path(directory) / name for name in ("pg", "logs")]
        for folder in folders:
            folder.mkdir()
        with portal.wrap_async_context_manager(running_postgres(pick_free(), *folders)) as postgres:
            portal.call(_migrated, postgres.url())
            yield postgres.url()


async def _migrated(url: str) -> None:
    async with open_database(url, smallest=1, largest=1) as database, database.connection() as connection:
        await migrate(connection)


if __name__ == "__main__":
    for row in rows():
        print(row)
