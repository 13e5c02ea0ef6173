"""Routes and store of `/v1/files`. The contents are kept in the state folder of this user.

The coordinator never gets a file. When a batch is created, its lines are read from the file and sealed one by one.
Files are kept until they are deleted or expire.
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

from svc.protected_files import open_atomic
from svc.serve.exchange import LocalRequest, WholeReply
from svc.serve.http import LocalRoute, local_route
from svc.serve.ledger import Ledger
from svc.serve.problems import Problem, convert_storage_errors, invalid_request
from svc.serve.upload_form import read_form

_DOCUMENT_KIND: Final = "file"
_MAX_PAGE_FILES: Final = 10_000
# OpenAI's limits for the lifetime of a file.
_MIN_LIFETIME_S: Final = 3_600
_MAX_LIFETIME_S: Final = 2_592_000
_SWEEP_INTERVAL_S: Final = 600.0


class StoredFile(msgspec.Struct, frozen=True):
    """Description of a file."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    key: str
    expires_at: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the file as OpenAI describes it."""
        description = {"id": self.id, "bytes": self.bytes, "created_at": self.created_at, "filename": self.filename}
        return {
            **description,
            "object": "file",
            "purpose": self.purpose,
            "status": "processed",
            "expires_at": self.expires_at,
        }


@attrs.frozen
class LocalFiles:
    """Store of files. `folder` holds the contents, the ledger the descriptions."""

    folder: Path
    ledger: Ledger
    clock: Callable[[], float] = time.time

    def path(self, file_id: str) -> Path:
        return self.folder / file_id

    async def add(
        self, key: str, filename: str, purpose: str, content: bytes | Path, expires_at: int | None = None
    ) -> StoredFile:
        """Store a file. If `content` is a path, the file must be in this folder, and is moved. Raises StorageFailed."""
        file_id = f"file-{secrets.token_hex(12)}"

        def store() -> int:
            if isinstance(content, Path):
                content.replace(self.path(file_id))
            else:
                with open_atomic(self.path(file_id)) as target:
                    target.write(content)
            return self.path(file_id).stat().st_size

        with convert_storage_errors():
            size = await to_thread.run_sync(store)
        file = StoredFile(file_id, size, int(self.clock()), filename, purpose, key, expires_at)
        await self.ledger.put_document(_DOCUMENT_KIND, file_id, self.clock(), key, msgspec.json.encode(file).decode())
        return file

    async def get(self, key: str, file_id: str) -> StoredFile:
        """Return a file. Raises Problem (404) if it is missing, belongs to another key or has expired."""
        body = await self.ledger.get_document(_DOCUMENT_KIND, file_id, key)
        file = None if body is None else msgspec.json.decode(body, type=StoredFile)
        if file is None or self._is_expired(file):
            raise file_not_found(file_id)
        return file

    async def read(self, key: str, file_id: str) -> bytes:
        file = await self.get(key, file_id)
        try:
            return await anyio.Path(self.path(file.id)).read_bytes()
        except FileNotFoundError:
            message = f"the content of file {file_id} is missing in {self.folder}"
            raise Problem(404, message, code="file_not_found", param="file_id") from None

    async def list_files(self, key: str | None) -> list[StoredFile]:
        """Return the files, newest first."""
        found = [
            msgspec.json.decode(body, type=StoredFile) for body in await self.ledger.list_documents(_DOCUMENT_KIND, key)
        ]
        return [file for file in found if not self._is_expired(file)]

    async def remove(self, key: str, file_id: str) -> None:
        await self._remove((await self.get(key, file_id)).id)

    async def _remove(self, file_id: str) -> None:
        await self.ledger.remove_document(_DOCUMENT_KIND, file_id)
        with convert_storage_errors():
            await anyio.Path(self.path(file_id)).unlink(missing_ok=True)

    def _is_expired(self, file: StoredFile) -> bool:
        return file.expires_at is not None and file.expires_at <= self.clock()

    async def remove_expired(self) -> None:
        """Remove expired files."""
        for body in await self.ledger.list_documents(_DOCUMENT_KIND, None):
            file = msgspec.json.decode(body, type=StoredFile)
            if self._is_expired(file):
                await self._remove(file.id)

    async def remove_expired_repeatedly(self, report: Callable[[str], object]) -> None:
        """Remove expired files at intervals, until cancelled."""
        while True:
            try:
                await self.remove_expired()
            except Exception as error:  # the next round tries again
                report(f"cannot remove expired files: {error}")
            await anyio.sleep(_SWEEP_INTERVAL_S)


def file_not_found(file_id: str) -> Problem:
    return Problem(404, f"file {file_id} not found", code="file_not_found", param="file_id")


@attrs.frozen
class LocalFileRoutes:
    """Handlers of `/v1/files`."""

    files: LocalFiles

    def routes(self) -> Sequence[LocalRoute]:
        return [
            local_route("POST", "/v1/files", self._upload),
            local_route("GET", "/v1/files", self._list),
            local_route("GET", "/v1/files/{id}", self._get),
            local_route("GET", "/v1/files/{id}/content", self._content),
            local_route("DELETE", "/v1/files/{id}", self._delete),
        ]

    async def _upload(self, request: LocalRequest) -> WholeReply:
        partial = self.files.folder / f".upload.{secrets.token_hex(8)}.partial"
        try:
            with convert_storage_errors():
                form = await read_form(request, partial)
            purpose = form.fields.get("purpose")
            if purpose != "batch":
                message = "purpose must be batch: send other files inside the prompt, as data"
                raise invalid_request(message, "purpose", "invalid_purpose")
            if form.filename is None:
                raise invalid_request("the form must have a part named file, with a filename", "file")
            expires_at = _read_expiry(form.fields, self.files.clock())
            file = await self.files.add(request.key.name, form.filename, purpose, partial, expires_at)
        finally:
            await anyio.Path(partial).unlink(missing_ok=True)
        return WholeReply(file.to_json())

    async def _list(self, request: LocalRequest) -> WholeReply:
        found = await self.files.list_files(request.key.name)
        purpose = request.query.get("purpose")
        items = [file.to_json() for file in found if purpose in {None, file.purpose}]
        return WholeReply(build_list_page(items, request.query, _MAX_PAGE_FILES, _MAX_PAGE_FILES))

    async def _get(self, request: LocalRequest, file_id: str) -> WholeReply:
        return WholeReply((await self.files.get(request.key.name, file_id)).to_json())

    async def _content(self, request: LocalRequest, file_id: str) -> WholeReply:
        content = await self.files.read(request.key.name, file_id)
        return WholeReply(content, headers={"content-type": "application/octet-stream"})

    async def _delete(self, request: LocalRequest, file_id: str) -> WholeReply:
        await self.files.remove(request.key.name, file_id)
        return WholeReply({"id": file_id, "object": "file", "deleted": True})


def read_lifetime(anchor: object, seconds: object, allowed_anchors: Collection[str], param: str) -> int:
    """Return the lifetime of a file in seconds. Raises Problem."""
    if anchor not in allowed_anchors:
        raise invalid_request(f"{param}.anchor must be {' or '.join(allowed_anchors)}", f"{param}.anchor")
    if type(seconds) is not int or not _MIN_LIFETIME_S <= seconds <= _MAX_LIFETIME_S:
        raise invalid_request(f"{param}.seconds must be {_MIN_LIFETIME_S} to {_MAX_LIFETIME_S}", f"{param}.seconds")
    return seconds


def _read_expiry(fields: Mapping[str, str], now: float) -> int | None:
    """Return the time at which an uploaded file expires. A form has one field for each member of `expires_after`."""
    anchor, text = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and text is None:
        return None
    seconds = int(text) if text is not None and text.isdecimal() and text.isascii() else text
    return int(now) + read_lifetime(anchor, seconds, ("created_at",), "expires_after")


def build_list_page(
    items: list[dict[str, Any]], query: Mapping[str, str], max_limit: int, default_limit: int
) -> dict[str, Any]:
    """Return a page of `items`, which are sorted newest first.

    The query's `order` may reverse the items, and its `after` and `limit` select the page.
    """
    order = query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise invalid_request("order must be asc or desc", "order")
    if order == "asc":
        items = items[::-1]
    ids = [item["id"] for item in items]
    after, limit = query.get("after"), query.get("limit", str(default_limit))
    if not limit.isdecimal() or not limit.isascii() or not 1 <= int(limit[:9]) <= max_limit:
        raise invalid_request(f"limit must be a number from 1 to {max_limit}", "limit")
    if after is not None and after not in ids:
        raise invalid_request("after must be the id of a listed item", "after")
    begin = 0 if after is None else ids.index(after) + 1
    page = items[begin : begin + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": begin + len(page) < len(items),
    }
