"""Stored files of this wallet."""

import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import attrs

from svc.account import Account
from svc.records import File
from svc.wire.transport import read

# Files that appear whole or not at all.


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, readable by its owner alone; it takes its name when the block ends without an error.

    A device or a pipe is written to as it is, and a link at the named place is followed: to take their place would be
    to remove them. Until then the bytes are in a file whose name nobody can guess, so that no link can lie in wait.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    path = path.resolve()
    partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


UploadPurpose = Literal["input", "result", "batch"]


@attrs.frozen
class Files:
    account: Account

    async def upload(self, content: bytes | Path, purpose: UploadPurpose, *, filename: str | None = None) -> File:
        """Store bytes, or the file at a path, which is read as it is sent. Never made again on an error status."""
        name = filename or (content.name if isinstance(content, Path) else purpose)

        async def ask(headers: dict[str, str]) -> File:
            # Opened for each attempt: one that was refused for its session has read some of it.
            with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as source:
                answer = await self.account.transport.send(
                    "POST",
                    "/v1/files",
                    safe=False,
                    data={"purpose": purpose},  # sent before the file, as the route wants it
                    files={"file": (name, source)},
                    headers=headers,
                )
            return read(answer, File)

        return await self.account.authorised(ask)

    async def get(self, file_id: str) -> File:
        return await self.account.authorised(
            lambda headers: self.account.transport.get(f"/v1/files/{file_id}", File, headers=headers)
        )

    async def content(self, file_id: str) -> bytes:
        """The whole of a file. For large ones, `save`."""
        content = io.BytesIO()
        await self._copy(file_id, content)
        return content.getvalue()

    async def save(self, file_id: str, path: Path) -> int:
        """Write a file's content to `path`, which appears once it is whole; how many bytes there were."""
        with appearing(path) as target:
            return await self._copy(file_id, target)

    async def _copy(self, file_id: str, target: IO[bytes]) -> int:
        async def ask(headers: dict[str, str]) -> int:
            length = 0
            async with self.account.transport.streaming(f"/v1/files/{file_id}/content", headers) as pieces:
                async for piece in pieces:
                    length += target.write(piece)
            return length

        return await self.account.authorised(ask)
