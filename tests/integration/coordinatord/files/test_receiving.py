"""The service behind the file routes, over the real store and database."""

import tracemalloc
from collections.abc import AsyncIterator, Callable

import anyio
import httpx
import pytest

from common.daemon.secrets import Secret
from common.refusal import Refused
from coordinatord.api.files.files import FileStore
from coordinatord.api.files.files_sql import FileRow, new_file_id
from coordinatord.base.errors import Retryable
from coordinatord.http.uploads import MAX_UPLOAD_MEMORY_BYTES
from coordinatord.run.janitor import Janitor
from coordinatord.storage.database.connections import Database
from coordinatord.storage.pins.containers import Containers
from coordinatord.storage.pins.requests import RequestSigner, StoreRequests
from coordinatord.storage.pins.store import PinningStore, bucket_url, open_pin_store
from devnet.pins import PinStoreService as DevnetPins
from tests.integration.coordinatord.scene.faults import Faults
from tests.support.fakes.streamed import http_over
from tests.support.faults.upload_process import upload_process

MIB = 1 << 20
OWNER = b"\x01" * 20
RETENTION = 2_592_000


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def requests(faults: Faults, pin_store: DevnetPins) -> AsyncIterator[StoreRequests]:
    async with httpx.AsyncClient(transport=faults, timeout=5) as client:
        signer = RequestSigner(Secret(pin_store.key), Secret(pin_store.secret), "us-east-1")
        yield StoreRequests(http_over(client), bucket_url(pin_store.endpoint, pin_store.bucket), signer, attempts=1)


@pytest.fixture
def files(database: Database, requests: StoreRequests) -> FileStore:
    return FileStore(database, PinningStore(requests), RETENTION)


async def pieces(*contents: bytes) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


async def read(files: FileStore, row: FileRow, first: int = 0, last: int | None = None) -> bytes:
    async with files.open(row, first, last) as coming:
        return b"".join([piece async for piece in coming])


async def fetchval(files: FileStore, query: str) -> object:
    async with files.database.connection() as connection:
        return await connection.fetchval(query)


async def sweep(files: FileStore) -> None:
    janitor = Janitor(files.database, Containers(files.database, files.pins, RETENTION), files, RETENTION)
    async with files.database.connection() as connection:
        await janitor.sweep(connection)  # type: ignore[arg-type] # a pooled connection does as well here


class StoreUploads:
    """A rule that passes everything and records multipart uploads."""

    def __init__(self) -> None:
        self.queries: set[tuple[str, str]] = set()

    def __call__(self, request: httpx.Request) -> None:
        upload = request.url.params.get("uploadId")
        if upload:
            self.queries.add((request.url.path.partition("/files/")[2], f"uploadId={upload}"))


async def are_gone(requests: StoreRequests, uploads: StoreUploads) -> bool:
    """Return whether each upload was aborted or completed, so that the store no longer knows it."""
    assert uploads.queries
    for key, query in uploads.queries:
        with pytest.raises(Retryable) as unknown:
            await requests.send("parts", "GET", f"files/{key}", query=query)
        assert unknown.value.code == "object_missing"
    return True


async def test_upload_is_stored_whole_with_what_was_learnt_on_the_way(files: FileStore) -> None:
    row = await files.upload(OWNER, "batch", "a.jsonl", pieces(b'{"a":1}\n\n', b' \n{"b"', b":2}"))
    assert (row.bytes, row.lines, row.commitment, row.attached) == (18, 2, None, False)
    assert (row.expires_at - row.created_at).total_seconds() == 300
    assert await files.find(row.id, OWNER) == row
    assert await files.find(row.id, b"\x02" * 20) is None
    assert await read(files, row) == b'{"a":1}\n\n \n{"b":2}'
    assert await read(files, row, 2, 4) == b'a":'


@pytest.mark.parametrize(("size", "in_parts"), [(8 * MIB, False), (8 * MIB + 1, True), (19 * MIB, True)])
async def test_content_above_8_mib_is_uploaded_in_parts(
    files: FileStore, faults: Faults, requests: StoreRequests, size: int, *, in_parts: bool
) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    uploads = StoreUploads()
    with faults.answering(uploads):
        row = await files.upload(OWNER, "result", "a", pieces(content[:100], content[100:MIB], content[MIB:]))
    assert bool(uploads.queries) == in_parts
    assert await read(files, row) == content
    if in_parts:
        assert await are_gone(requests, uploads)


def failing_part(request: httpx.Request) -> httpx.Response | None:
    return httpx.Response(500) if request.url.params.get("partNumber") == "2" else None


def failing_completion(request: httpx.Request) -> httpx.Response | None:
    is_completion = request.method == "POST" and "uploadId" in request.url.params
    return httpx.Response(200, content=b"<Error>") if is_completion else None


@pytest.mark.parametrize(
    ("rule", "code"), [(failing_part, "store_unavailable"), (failing_completion, "store_rejected")]
)
async def test_store_failure_midway_leaves_nothing(
    files: FileStore,
    faults: Faults,
    requests: StoreRequests,
    rule: Callable[[httpx.Request], httpx.Response | None],
    code: str,
) -> None:
    uploads = StoreUploads()
    with faults.answering(uploads), faults.answering(rule), pytest.raises(Retryable) as failed:
        await files.upload(OWNER, "result", "a", pieces(*[bytes(MIB)] * 20))
    assert failed.value.code == code
    assert await fetchval(files, "select count(*) from files") == 0
    assert await are_gone(requests, uploads)


async def test_upload_that_is_refused_at_its_last_byte_leaves_nothing(
    files: FileStore, faults: Faults, requests: StoreRequests
) -> None:
    uploads = StoreUploads()
    line = b"{}" + b" " * 400 + b"\n"
    with faults.answering(uploads), pytest.raises(Refused) as refused:
        await files.upload(OWNER, "batch", "a", pieces(line * 50_000, b"{}"))
    assert refused.value.code == "too_many_lines"
    assert await fetchval(files, "select count(*) from files") == 0
    assert await are_gone(requests, uploads)


async def test_janitor_cleans_up_after_a_failed_cleanup(
    files: FileStore, faults: Faults, requests: StoreRequests
) -> None:
    uploads = StoreUploads()

    def gone_from_the_second_part(request: httpx.Request) -> httpx.Response | None:
        is_later = request.method == "DELETE" or request.url.params.get("partNumber") == "2"
        return httpx.Response(503) if is_later else None

    with faults.answering(uploads), faults.answering(gone_from_the_second_part), pytest.raises(Retryable):
        await files.upload(OWNER, "result", "a", pieces(*[bytes(MIB)] * 20))
    assert await fetchval(files, "select count(*) from files where cid is null") == 1
    await files.database.pool.execute("update files set removing_until = clock_timestamp()")
    await sweep(files)
    assert await fetchval(files, "select count(*) from files") == 0
    assert await are_gone(requests, uploads)


async def test_janitor_removes_only_the_killed_upload(
    files: FileStore, requests: StoreRequests, database_url: str, pin_store: DevnetPins
) -> None:
    kept = await files.upload(OWNER, "result", "a", pieces(b"kept"))
    async with await upload_process(database_url, pin_store) as process:
        with anyio.fail_after(60):
            # The event is in another process.
            while not await fetchval(files, "select upload_id from files where cid is null"):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        process.kill()
        await process.wait()
    uploads = StoreUploads()
    async with files.database.connection() as connection:
        row = await connection.fetchrow("select id, upload_id from files where cid is null")
    assert row is not None
    uploads.queries.add((row["id"], f"uploadId={row['upload_id']}"))
    await sweep(files)  # the upload may still be running, as far as the sweep knows
    assert await fetchval(files, "select count(*) from files") == 2
    await files.database.pool.execute("update files set expires_at = clock_timestamp() where cid is null")
    await sweep(files)
    assert await fetchval(files, "select count(*) from files") == 1
    assert await are_gone(requests, uploads)
    assert await read(files, kept) == b"kept"


async def test_output_stored_again_replaces_what_it_was(files: FileStore) -> None:
    file_id = new_file_id()
    await files.put_output(OWNER, "out.jsonl", pieces(b"first\n"), file_id)
    row = await files.put_output(OWNER, "out.jsonl", pieces(b"second\n", b"line\n"), file_id)
    assert (row.id, row.purpose, row.lines, row.attached) == (file_id, "batch_output", 0, True)
    assert (row.expires_at - row.created_at).total_seconds() == RETENTION
    assert await read(files, row) == b"second\nline\n"
    assert await fetchval(files, "select count(*) from files") == 1


async def test_output_that_fails_the_second_time_keeps_the_first(files: FileStore, faults: Faults) -> None:
    row = await files.put_output(OWNER, "out.jsonl", pieces(b"first\n"), new_file_id())
    with faults.answering(lambda r: httpx.Response(500) if r.method == "PUT" else None), pytest.raises(Retryable):
        await files.put_output(OWNER, "out.jsonl", pieces(b"second\n"), row.id)
    found = await files.find(row.id, OWNER)
    assert found is not None
    assert await read(files, found) == b"first\n"


async def test_memory_of_an_upload_is_bounded_whatever_its_size(database: Database, pin_store: DevnetPins) -> None:
    async def coming() -> AsyncIterator[bytes]:
        for _ in range(48 * 16):
            yield bytes(MIB // 16)

    key, secret = Secret(pin_store.key), Secret(pin_store.secret)
    async with open_pin_store(pin_store.endpoint, pin_store.bucket, key, secret, "us-east-1") as pins:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            row = await FileStore(database, pins, RETENTION).upload(OWNER, "result", "a", coming())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert row.bytes == 48 * MIB
        assert peak - before < MAX_UPLOAD_MEMORY_BYTES
