"""The objects of the store, on disk. Blocking and safe to call from any thread.

    index.sqlite   which key holds which content; small content itself
    blobs/<cid>    other content, once for all keys that hold it
    parts/         parts of multipart uploads that have not ended
    incoming/      what is being received

A file appears in blobs/ whole, by rename, before the index names it, and goes after the last row that names
it. What lies between the two after a crash is swept at the next start.

Whoever puts while others are being written shares the next write, and its syncs, with all that wait.
"""

import contextlib
import io
import json
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, Self

import attrs
from anyio import Lock, to_thread

from devnet.pinstore.content import Held, Received

# Index of the store: keys as rows in SQLite beside the content.

_DURABLE: Final = "pragma journal_mode=wal; pragma synchronous=full; pragma foreign_keys=on"
_SCHEMA: Final = """
create table if not exists object (
  key text primary key, cid text not null, size integer not null, etag text not null,
  modified integer not null, content_type text not null, metadata text not null
) strict;
create index if not exists object_cid on object (cid);
create table if not exists content (cid text primary key, body blob not null) strict;
create table if not exists upload (
  id text primary key, key text not null, content_type text not null, metadata text not null
) strict;
create table if not exists part (
  upload text not null references upload on delete cascade, number integer not null,
  size integer not null, md5 blob not null, file text not null, modified integer not null,
  primary key (upload, number)
) strict;
"""


@attrs.frozen
class StoredObject:
    key: str
    cid: str
    size: int
    etag: str
    modified: int
    content_type: str
    metadata: dict[str, str]


@attrs.define(eq=False)
class Put:
    """One that is to be stored; `stored` once it is."""

    key: str
    content: Received | Held
    etag: str
    content_type: str
    metadata: dict[str, str]
    stored: StoredObject | None = None


@attrs.frozen
class MultipartUpload:
    id: str
    key: str
    content_type: str
    metadata: dict[str, str]


@attrs.frozen
class Part:
    number: int
    size: int
    md5: bytes
    file: str
    modified: int


class Index:
    """Each method outside of `together` is one transaction, on disk when it returns. One caller at a time, but for
    `content_at_once`."""

    def __init__(self, path: Path) -> None:
        # Calls come from whichever worker thread; the caller sees to one at a time.
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.executescript(_DURABLE)
        self._database.executescript(_SCHEMA)
        # Of its own: it does not wait for writes.
        self._reading = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reading.close()
        self._database.close()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """One transaction of all that is called within."""
        self._database.execute("begin immediate")
        try:
            yield
            self._database.execute("commit")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("rollback")
            raise

    def put(self, stored: StoredObject) -> None:
        *values, metadata = attrs.astuple(stored, recurse=False)
        self._database.execute(
            "insert or replace into object values (?, ?, ?, ?, ?, ?, ?)", (*values, json.dumps(metadata))
        )

    def get(self, key: str) -> StoredObject | None:
        row = self._database.execute("select * from object where key = ?", (key,)).fetchone()
        return None if row is None else StoredObject(**{**row, "metadata": json.loads(row["metadata"])})

    def delete(self, key: str) -> None:
        self._database.execute("delete from object where key = ?", (key,))

    def holds(self, cid: str) -> bool:
        return self._database.execute("select 1 from object where cid = ?", (cid,)).fetchone() is not None

    def put_content(self, cid: str, body: bytes) -> None:
        self._database.execute("insert or ignore into content values (?, ?)", (cid, body))

    def content(self, cid: str) -> bytes | None:
        return _body(self._database, cid)

    def content_at_once(self, cid: str) -> bytes | None:
        """As of the last commit, whoever writes meanwhile; for one thread alone."""
        return _body(self._reading, cid)

    def drop_content(self, cid: str) -> None:
        """Unless a key holds it."""
        self._database.execute(
            "delete from content where cid = ?1 and not exists (select 1 from object where cid = ?1)", (cid,)
        )

    def create_upload(self, upload: MultipartUpload) -> None:
        values = (upload.id, upload.key, upload.content_type, json.dumps(upload.metadata))
        self._database.execute("insert into upload values (?, ?, ?, ?)", values)

    def upload(self, upload_id: str) -> MultipartUpload | None:
        row = self._database.execute("select * from upload where id = ?", (upload_id,)).fetchone()
        return None if row is None else MultipartUpload(**{**row, "metadata": json.loads(row["metadata"])})

    def delete_upload(self, upload_id: str) -> None:
        self._database.execute("delete from upload where id = ?", (upload_id,))

    def put_part(self, upload_id: str, part: Part) -> None:
        self._database.execute(
            "insert or replace into part values (?, ?, ?, ?, ?, ?)",
            (upload_id, part.number, part.size, part.md5, part.file, part.modified),
        )

    def parts(self, upload_id: str) -> list[Part]:
        rows = self._database.execute(
            "select number, size, md5, file, modified from part where upload = ? order by number",
            (upload_id,),
        )
        return [Part(*row) for row in rows]

    def part_files(self) -> set[str]:
        return {file for (file,) in self._database.execute("select file from part")}


def _body(database: sqlite3.Connection, cid: str) -> bytes | None:
    row = database.execute("select body from content where cid = ?", (cid,)).fetchone()
    return None if row is None else row[0]


class Objects:
    """Use `opened`."""

    def __init__(self, directory: Path, index: Index) -> None:
        self._blobs = directory / "blobs"
        self._parts = directory / "parts"
        self._incoming = directory / "incoming"
        self._index = index
        # Held over each pair of steps on files and index that belong together.
        self._lock = threading.Lock()
        self._turn = Lock()  # of whoever writes what waits
        self._waiting: list[Put] = []
        self._sweep()

    def incoming(self) -> Path:
        """A name of its own for content to be written to."""
        return self._incoming / secrets.token_hex(16)

    async def share(self, put: Put) -> StoredObject:
        """Store it in one write with all that wait; that fails for all of them where it fails."""
        self._waiting.append(put)
        async with self._turn:
            if put in self._waiting:
                batch, self._waiting = self._waiting, []
                await to_thread.run_sync(self.put, batch)
        if put.stored is None:
            raise OSError("the write that it shared did not go through")
        return put.stored

    def put(self, puts: Sequence[Put]) -> list[StoredObject]:
        """In one transaction; those of one key in their order."""
        replaced: list[StoredObject | None] = []
        stored = []
        with self._lock:
            with self._index.together():
                for put in puts:
                    replaced.append(self._index.get(put.key))
                    stored.append(self._put(put))
                self._drop_rows(replaced)
            self._drop_files(replaced)
        for put, one in zip(puts, stored, strict=True):
            put.stored = one
        return stored

    def _put(self, put: Put) -> StoredObject:
        content, digests = put.content, put.content.digests
        now = int(time.time())
        stored = StoredObject(put.key, digests.cid, digests.size, put.etag, now, put.content_type, put.metadata)
        if isinstance(content, Held):
            self._index.put_content(stored.cid, content.body)
        else:
            _move(content.path, self._blobs / stored.cid)
        self._index.put(stored)
        return stored

    def get(self, key: str) -> StoredObject | None:
        with self._lock:
            return self._index.get(key)

    def open(self, key: str) -> tuple[StoredObject, IO[bytes]] | None:
        """The object and its content, which stays readable if the object is deleted meanwhile."""
        with self._lock:
            stored = self._index.get(key)
            if stored is None:
                return None
            body = self._index.content(stored.cid)
            return stored, (self._blobs / stored.cid).open("rb") if body is None else io.BytesIO(body)

    def open_content(self, cid: str) -> IO[bytes] | None:
        """Content by its id; `cid` must have been read strictly. For one thread alone."""
        body = self._index.content_at_once(cid)
        if body is not None:
            return io.BytesIO(body)
        try:
            return (self._blobs / cid).open("rb")
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> None:
        with self._lock:
            with self._index.together():
                before = [self._index.get(key)]
                self._index.delete(key)
                self._drop_rows(before)
            self._drop_files(before)

    def create_upload(self, key: str, content_type: str, metadata: dict[str, str]) -> MultipartUpload:
        upload = MultipartUpload(secrets.token_urlsafe(24), key, content_type, metadata)
        with self._lock:
            self._index.create_upload(upload)
        return upload

    def upload(self, upload_id: str, key: str) -> MultipartUpload | None:
        with self._lock:
            upload = self._index.upload(upload_id)
        return upload if upload is not None and upload.key == key else None

    def put_part(self, upload: MultipartUpload, number: int, received: Received) -> bool:
        """Keeps the part, in place of one with the same number; False if the upload has ended meanwhile."""
        part = Part(number, received.digests.size, received.digests.md5, received.path.name, int(time.time()))
        with self._lock:
            if self._index.upload(upload.id) is None:
                return False
            replaced = [old.file for old in self._index.parts(upload.id) if old.number == number]
            _move(received.path, self._parts / part.file)
            self._index.put_part(upload.id, part)
            self._drop_parts(replaced)
        return True

    def parts(self, upload: MultipartUpload) -> list[Part]:
        with self._lock:
            return self._index.parts(upload.id)

    def part_content(self, part: Part) -> Path:
        return self._parts / part.file

    def end_upload(self, upload: MultipartUpload) -> None:
        with self._lock:
            files = [part.file for part in self._index.parts(upload.id)]
            self._index.delete_upload(upload.id)
            self._drop_parts(files)

    def _drop_rows(self, before: Sequence[StoredObject | None]) -> None:
        for one in before:
            if one is not None:
                self._index.drop_content(one.cid)

    def _drop_files(self, before: Sequence[StoredObject | None]) -> None:
        """Once it is written that no key names them."""
        for one in before:
            if one is not None and not self._index.holds(one.cid):
                (self._blobs / one.cid).unlink(missing_ok=True)

    def _drop_parts(self, files: list[str]) -> None:
        for file in files:
            (self._parts / file).unlink(missing_ok=True)

    def _sweep(self) -> None:
        shutil.rmtree(self._incoming, ignore_errors=True)
        for directory in (self._blobs, self._parts, self._incoming):
            directory.mkdir(exist_ok=True)
        wanted = self._index.part_files()
        for path in self._parts.iterdir():
            if path.name not in wanted:
                path.unlink()
        for path in self._blobs.iterdir():
            if not self._index.holds(path.name):
                path.unlink()


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[Objects]:
    directory.mkdir(parents=True, exist_ok=True)
    with Index(directory / "index.sqlite") as index:
        yield Objects(directory, index)


def _move(source: Path, target: Path) -> None:
    source.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # else the name may be lost with the power, and the index names it already
    finally:
        os.close(directory)
