"""Routes of this wallet's stored files."""

import io
from pathlib import Path
from typing import IO, Literal

import attrs

from svc.account import Account
from svc.error_conversion import raises_svc_errors
from svc.own_files import open_atomic
from svc.records import File
from svc.wire.transport import read

UploadPurpose = Literal["input", "result", "batch"]


@raises_svc_errors
@attrs.frozen
class Files:
    """Routes of files."""

    account: Account

    async def upload(self, content: bytes | Path, purpose: UploadPurpose, *, filename: str | None = None) -> File:
        """Store bytes, or the file at a path. Never repeated after an error status."""
        name = filename or (content.name if isinstance(content, Path) else purpose)

        async def send(headers: dict[str, str]) -> File:
            # Open it for each attempt: an attempt rejected for its session has read part of it.
            with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as source:
                answer = await self.account.transport.send(
                    "POST",
                    "/v1/files",
                    safe=False,
                    data={"purpose": purpose},  # the route requires it before the file
                    files={"file": (name, source)},
                    headers=headers,
                )
            return read(answer, File)

        return await self.account.authorised(send)

    async def get(self, file_id: str) -> File:
        return await self.account.authorised(
            lambda headers: self.account.transport.get(f"/v1/files/{file_id}", File, headers=headers)
        )

    async def content(self, file_id: str) -> bytes:
        """Return the content of a file. For large files use `save`."""
        content = io.BytesIO()
        await self._copy(file_id, content)
        return content.getvalue()

    async def save(self, file_id: str, path: Path) -> int:
        """Write a file's content to `path`, which appears once it is complete. Return its size in bytes."""
        with open_atomic(path) as target:
            return await self._copy(file_id, target)

    async def _copy(self, file_id: str, target: IO[bytes]) -> int:
        async def send(headers: dict[str, str]) -> int:
            length = 0
            async with self.account.transport.streaming(f"/v1/files/{file_id}/content", headers) as chunks:
                async for chunk in chunks:
                    length += target.write(chunk)
            return length

        return await self.account.authorised(send)
