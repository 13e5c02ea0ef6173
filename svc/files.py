"""Stored files of this wallet."""

import io
from pathlib import Path
from typing import IO, Literal

import attrs

from svc.account import Account
from svc.error_conversion import raises_svc_errors
from svc.own_files import appearing
from svc.records import File
from svc.wire.transport import read

UploadPurpose = Literal["input", "result", "batch"]


@raises_svc_errors
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
