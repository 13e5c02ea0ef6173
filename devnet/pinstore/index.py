"""What the store holds under which key: rows in SQLite beside the content."""

import json
import sqlite3
from pathlib import Path
from typing import Final, Self

import attrs

_DURABLE: Final = "pragma journal_mode=wal; pragma synchronous=full; pragma foreign_keys=on"
_SCHEMA: Final = """
create table if not exists object (
  key text primary key, cid text not null, size integer not null, etag text not null,
  modified integer not null, content_type text not null, metadata text not null
) strict;
create index if not exists object_cid on object (cid);
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


@attrs.frozen
class Upload:
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
    """Each method is one transaction, on disk when it returns. One caller at a time."""

    def __init__(self, path: Path) -> None:
        # Calls come from whichever worker thread; the caller sees to one at a time.
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.executescript(_DURABLE)
        self._database.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

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

    def create_upload(self, upload: Upload) -> None:
        values = (upload.id, upload.key, upload.content_type, json.dumps(upload.metadata))
        self._database.execute("insert into upload values (?, ?, ?, ?)", values)

    def upload(self, upload_id: str) -> Upload | None:
        row = self._database.execute("select * from upload where id = ?", (upload_id,)).fetchone()
        return None if row is None else Upload(**{**row, "metadata": json.loads(row["metadata"])})

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
