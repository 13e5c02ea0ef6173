"""`/v1/files`: files of batches, kept in the state folder of this user and nowhere else.

A batch's lines are in OpenAI's own form, so that they are read here and sealed one by one when the batch is made; the
coordinator gets none of this. Files stay until they are deleted: the user's own disk is no market's concern.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import msgspec
from anyio import to_thread

from svc.files import appearing
from svc.serve.exchange import LocalRequest, WholeReply
from svc.serve.http import Handled, handled
from svc.serve.ledger import Ledger
from svc.serve.problems import Problem, invalid
from svc.serve.upload_form import read_form

_FILE: Final = "file"
_MOST_LISTED: Final = 10_000


class StoredFile(msgspec.Struct, frozen=True):
    """As OpenAI describes one."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    key: str

    def told(self) -> dict[str, Any]:
        known = {"id": self.id, "bytes": self.bytes, "created_at": self.created_at, "filename": self.filename}
        return {**known, "object": "file", "purpose": self.purpose, "status": "processed", "expires_at": None}


@attrs.frozen
class LocalFiles:
    """`folder` holds the contents, the ledger what is known of them."""

    folder: Path
    ledger: Ledger
    clock: Callable[[], float] = time.time

    def path(self, file_id: str) -> Path:
        return self.folder / file_id

    async def add(self, key: str, filename: str, purpose: str, content: bytes | Path) -> StoredFile:
        """A `Path` is taken over: it is a file of this folder."""
        file_id = f"file-{secrets.token_hex(12)}"

        def store() -> int:
            if isinstance(content, Path):
                content.replace(self.path(file_id))
            else:
                with appearing(self.path(file_id)) as target:
                    target.write(content)
            return self.path(file_id).stat().st_size

        size = await to_thread.run_sync(store)
        file = StoredFile(file_id, size, int(self.clock()), filename, purpose, key)
        await self.ledger.put(_FILE, file_id, self.clock(), key, msgspec.json.encode(file).decode())
        return file

    async def get(self, key: str, file_id: str) -> StoredFile:
        """Raises Problem (404) for one that is another key's, too."""
        body = await self.ledger.get(_FILE, file_id, key)
        if body is None:
            raise Problem(404, f"there is no file {file_id}", code="file_not_found", param="file_id")
        return msgspec.json.decode(body, type=StoredFile)

    async def read(self, key: str, file_id: str) -> bytes:
        file = await self.get(key, file_id)
        return await anyio.Path(self.path(file.id)).read_bytes()

    async def all(self, key: str) -> list[StoredFile]:
        return [msgspec.json.decode(body, type=StoredFile) for body in await self.ledger.all(_FILE, key)]

    async def remove(self, key: str, file_id: str) -> None:
        file = await self.get(key, file_id)
        await self.ledger.remove(_FILE, file.id)
        await anyio.Path(self.path(file.id)).unlink(missing_ok=True)


@attrs.frozen
class LocalFileRoutes:
    files: LocalFiles

    def routes(self) -> Sequence[Handled]:
        return [
            handled("POST", "/v1/files", self._upload),
            handled("GET", "/v1/files", self._list),
            handled("GET", "/v1/files/{id}", self._get),
            handled("GET", "/v1/files/{id}/content", self._content),
            handled("DELETE", "/v1/files/{id}", self._delete),
        ]

    async def _upload(self, asked: LocalRequest) -> WholeReply:
        partial = self.files.folder / f".upload.{secrets.token_hex(8)}.partial"
        try:
            form = await read_form(asked, partial)
            purpose = form.fields.get("purpose")
            if purpose != "batch":
                message = "purpose must be batch: prompts carry other files themselves, as data"
                raise invalid(message, "purpose", "invalid_purpose")
            if form.filename is None:
                raise invalid("the form must have a part named file, with a filename", "file")
            file = await self.files.add(asked.key.name, form.filename, purpose, partial)
        finally:
            await anyio.Path(partial).unlink(missing_ok=True)
        return WholeReply(file.told())

    async def _list(self, asked: LocalRequest) -> WholeReply:
        found = await self.files.all(asked.key.name)
        purpose = asked.query.get("purpose")
        told = [file.told() for file in found if purpose in {None, file.purpose}]
        return WholeReply(listing(told, asked.query, _MOST_LISTED))

    async def _get(self, asked: LocalRequest, file_id: str) -> WholeReply:
        return WholeReply((await self.files.get(asked.key.name, file_id)).told())

    async def _content(self, asked: LocalRequest, file_id: str) -> WholeReply:
        content = await self.files.read(asked.key.name, file_id)
        return WholeReply(content, headers={"content-type": "application/octet-stream"})

    async def _delete(self, asked: LocalRequest, file_id: str) -> WholeReply:
        await self.files.remove(asked.key.name, file_id)
        return WholeReply({"id": file_id, "object": "file", "deleted": True})


def listing(told: list[dict[str, Any]], query: Any, most: int) -> dict[str, Any]:
    """A page in the order it has: `after` names the last one before it, `limit` its length."""
    ids = [one["id"] for one in told]
    after, limit = query.get("after"), query.get("limit", str(most))
    if not limit.isdecimal() or not 1 <= int(limit) <= most:
        raise invalid(f"limit must be a number from 1 to {most}", "limit")
    begin = ids.index(after) + 1 if after in ids else 0
    page = told[begin : begin + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": begin + len(page) < len(told),
    }
