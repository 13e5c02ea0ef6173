"""`/v1/files`: files of batches, kept in the state folder of this user and nowhere else.

A batch's lines are in OpenAI's own form, so that they are read here and sealed one by one when the batch is made; the
coordinator gets none of this. Files stay until they are deleted, or expire as whoever made them said: the user's own
disk is no market's concern.
"""

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import msgspec
from anyio import to_thread

from svc.own_files import appearing
from svc.serve.exchange import LocalRequest, WholeReply
from svc.serve.http import Handled, handled
from svc.serve.ledger import Ledger
from svc.serve.problems import Problem, invalid, storing
from svc.serve.upload_form import read_form

_FILE: Final = "file"
_MOST_LISTED: Final = 10_000
_SHORTEST_LIFE: Final = 3_600  # seconds, as OpenAI has it
_LONGEST_LIFE: Final = 2_592_000
_SWEEP_SECONDS: Final = 600.0


class StoredFile(msgspec.Struct, frozen=True):
    """As OpenAI describes one."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    key: str
    expires_at: int | None = None

    def told(self) -> dict[str, Any]:
        known = {"id": self.id, "bytes": self.bytes, "created_at": self.created_at, "filename": self.filename}
        return {
            **known,
            "object": "file",
            "purpose": self.purpose,
            "status": "processed",
            "expires_at": self.expires_at,
        }


@attrs.frozen
class LocalFiles:
    """`folder` holds the contents, the ledger what is known of them."""

    folder: Path
    ledger: Ledger
    clock: Callable[[], float] = time.time

    def path(self, file_id: str) -> Path:
        return self.folder / file_id

    async def add(
        self, key: str, filename: str, purpose: str, content: bytes | Path, expires_at: int | None = None
    ) -> StoredFile:
        """Store a file. A `Path` must be in this folder, and becomes the store's. Raise StorageFailed."""
        file_id = f"file-{secrets.token_hex(12)}"

        def store() -> int:
            if isinstance(content, Path):
                content.replace(self.path(file_id))
            else:
                with appearing(self.path(file_id)) as target:
                    target.write(content)
            return self.path(file_id).stat().st_size

        with storing():
            size = await to_thread.run_sync(store)
        file = StoredFile(file_id, size, int(self.clock()), filename, purpose, key, expires_at)
        await self.ledger.put(_FILE, file_id, self.clock(), key, msgspec.json.encode(file).decode())
        return file

    async def get(self, key: str, file_id: str) -> StoredFile:
        """Raises Problem (404) for one that is another key's, or has expired, too."""
        body = await self.ledger.get(_FILE, file_id, key)
        file = None if body is None else msgspec.json.decode(body, type=StoredFile)
        if file is None or self._expired(file):
            raise no_such_file(file_id)
        return file

    async def read(self, key: str, file_id: str) -> bytes:
        file = await self.get(key, file_id)
        try:
            return await anyio.Path(self.path(file.id)).read_bytes()
        except FileNotFoundError:
            message = f"the content of file {file_id} is no longer in {self.folder}"
            raise Problem(404, message, code="file_not_found", param="file_id") from None

    async def all(self, key: str | None) -> list[StoredFile]:
        """The newest first."""
        found = [msgspec.json.decode(body, type=StoredFile) for body in await self.ledger.all(_FILE, key)]
        return [file for file in found if not self._expired(file)]

    async def remove(self, key: str, file_id: str) -> None:
        await self._remove((await self.get(key, file_id)).id)

    async def _remove(self, file_id: str) -> None:
        await self.ledger.remove(_FILE, file_id)
        with storing():
            await anyio.Path(self.path(file_id)).unlink(missing_ok=True)

    def _expired(self, file: StoredFile) -> bool:
        return file.expires_at is not None and file.expires_at <= self.clock()

    async def sweep(self) -> None:
        """Remove what has expired."""
        for body in await self.ledger.all(_FILE, None):
            file = msgspec.json.decode(body, type=StoredFile)
            if self._expired(file):
                await self._remove(file.id)

    async def keep_swept(self, say: Callable[[str], object]) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.sweep()
            except Exception as error:  # the next sweep removes them
                say(f"expired files cannot be removed: {error}")
            await anyio.sleep(_SWEEP_SECONDS)


def no_such_file(file_id: str) -> Problem:
    return Problem(404, f"there is no file {file_id}", code="file_not_found", param="file_id")


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
            with storing():
                form = await read_form(asked, partial)
            purpose = form.fields.get("purpose")
            if purpose != "batch":
                message = "purpose must be batch: prompts carry other files themselves, as data"
                raise invalid(message, "purpose", "invalid_purpose")
            if form.filename is None:
                raise invalid("the form must have a part named file, with a filename", "file")
            expires_at = _expiry(form.fields, self.files.clock())
            file = await self.files.add(asked.key.name, form.filename, purpose, partial, expires_at)
        finally:
            await anyio.Path(partial).unlink(missing_ok=True)
        return WholeReply(file.told())

    async def _list(self, asked: LocalRequest) -> WholeReply:
        found = await self.files.all(asked.key.name)
        purpose = asked.query.get("purpose")
        told = [file.told() for file in found if purpose in {None, file.purpose}]
        return WholeReply(listing(told, asked.query, _MOST_LISTED, _MOST_LISTED))

    async def _get(self, asked: LocalRequest, file_id: str) -> WholeReply:
        return WholeReply((await self.files.get(asked.key.name, file_id)).told())

    async def _content(self, asked: LocalRequest, file_id: str) -> WholeReply:
        content = await self.files.read(asked.key.name, file_id)
        return WholeReply(content, headers={"content-type": "application/octet-stream"})

    async def _delete(self, asked: LocalRequest, file_id: str) -> WholeReply:
        await self.files.remove(asked.key.name, file_id)
        return WholeReply({"id": file_id, "object": "file", "deleted": True})


def life_of(anchor: object, seconds: object, anchors: Collection[str], param: str) -> int:
    """Seconds that a file is kept. Raises Problem."""
    if anchor not in anchors:
        raise invalid(f"{param}.anchor must be {' or '.join(anchors)}", f"{param}.anchor")
    if type(seconds) is not int or not _SHORTEST_LIFE <= seconds <= _LONGEST_LIFE:
        raise invalid(f"{param}.seconds must be {_SHORTEST_LIFE} to {_LONGEST_LIFE}", f"{param}.seconds")
    return seconds


def _expiry(fields: Mapping[str, str], now: float) -> int | None:
    """Of a form, in which an object is spelled field by field."""
    anchor, text = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and text is None:
        return None
    seconds = int(text) if text is not None and text.isdecimal() and text.isascii() else text
    return int(now) + life_of(anchor, seconds, ("created_at",), "expires_after")


def listing(told: list[dict[str, Any]], query: Mapping[str, str], most: int, usual: int) -> dict[str, Any]:
    """A page of what is told newest first: `order` turns it round, `after` names the last one before it, `limit` its
    length."""
    order = query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise invalid("order must be asc or desc", "order")
    if order == "asc":
        told = told[::-1]
    ids = [one["id"] for one in told]
    after, limit = query.get("after"), query.get("limit", str(usual))
    if not limit.isdecimal() or not limit.isascii() or not 1 <= int(limit[:9]) <= most:
        raise invalid(f"limit must be a number from 1 to {most}", "limit")
    if after is not None and after not in ids:
        raise invalid("after must be the id of one that is listed", "after")
    begin = 0 if after is None else ids.index(after) + 1
    page = told[begin : begin + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": begin + len(page) < len(told),
    }
