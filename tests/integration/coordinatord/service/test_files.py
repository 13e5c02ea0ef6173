"""The service under the file routes, over the real store and database."""

from collections.abc import AsyncIterator

import httpx
import pytest

from coordinatord.pins.requests import StoreRequests
from coordinatord.pins.signing import Signer
from coordinatord.pins.store import PinStore, bucket_url
from coordinatord.secret import Secret
from coordinatord.service.files import Files
from coordinatord.store.database import Database, open_database
from coordinatord.store.files import FileRow
from coordinatord.store.migrate import migrate
from devnet.pins import PinStore as DevnetPins
from tests.integration.coordinatord.api.faults import Faults

pytestmark = pytest.mark.anyio

OWNER = b"\x01" * 20
RETENTION = 2_592_000


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, smallest=1, largest=8) as database:
        async with database.connection() as connection:
            await migrate(connection)
        yield database


@pytest.fixture
def store() -> Faults:
    return Faults()


@pytest.fixture
async def files(database: Database, store: Faults, pin_store: DevnetPins) -> AsyncIterator[Files]:
    async with httpx.AsyncClient(transport=store, timeout=5) as client:
        signer = Signer(Secret(pin_store.key), Secret(pin_store.secret), "us-east-1")
        url = bucket_url(pin_store.endpoint, pin_store.bucket)
        yield Files(database, PinStore(StoreRequests(client, url, signer, attempts=1)), RETENTION)


async def pieces(*contents: bytes) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


async def read(files: Files, row: FileRow, first: int = 0, last: int | None = None) -> bytes:
    async with files.open(row, first, last) as coming:
        return b"".join([piece async for piece in coming])


async def count(database: Database) -> object:
    async with database.connection() as connection:
        return await connection.fetchval("select count(*) from files")


async def test_upload_is_stored_whole_with_what_was_learnt_on_the_way(files: Files) -> None:
    row = await files.upload(OWNER, "batch", "a.jsonl", pieces(b'{"a":1}\n\n', b' \n{"b"', b":2}"))
    assert (row.bytes, row.lines, row.commitment, row.attached) == (18, 2, None, False)
    assert (row.expires_at - row.created_at).total_seconds() == 300
    assert await files.find(row.id, OWNER) == row
    assert await files.find(row.id, b"\x02" * 20) is None
    assert await read(files, row) == b'{"a":1}\n\n \n{"b":2}'
    assert await read(files, row, 2, 4) == b'a":'
