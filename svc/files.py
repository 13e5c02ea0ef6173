"""Upload and read this wallet's files at the coordinator."""

import io
from pathlib import Path
from typing import IO, Literal

import attrs

from svc.account import Account
from svc.error_conversion import raises_svc_errors
from svc.protected_files import open_atomic
from svc.records import File
from svc.wire.transport import read_record

UploadPurpose = Literal["input", "result", "batch"]


@raises_svc_errors
@attrs.frozen
class Files:
    """Uploads and reads files at the coordinator."""

    account: Account

    async def upload(self, content: bytes | Path, purpose: UploadPurpose, *, filename: str | None = None) -> File:
        """Store bytes, or the file at a path. The upload is not retried after an error status."""
        name = filename or (content.name if isinstance(content, Path) else purpose)

        async def send(headers: dict[str, str]) -> File:
            # Open the file again for each attempt, because a rejected attempt may have read part of the file.
            with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as source:
                answer = await self.account.transport.send(
                    "POST",
                    "/v1/files",
                    retry=False,
                    data={"purpose": purpose},  # the route requires this field before the file
                    files={"file": (name, source)},
                    headers=headers,
                )
            return read_record(answer, File)

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
        """Write a file's content to `path`, which appears once it is complete. Return the size in bytes."""
        with open_atomic(path) as target:
            return await self._copy(file_id, target)

    async def _copy(self, file_id: str, target: IO[bytes]) -> int:
        async def send(headers: dict[str, str]) -> int:
            length = 0
            async with self.account.transport.stream_pieces(f"/v1/files/{file_id}/content", headers) as chunks:
                async for chunk in chunks:
                    length += target.write(chunk)
            return length

        return await self.account.authorised(send)
