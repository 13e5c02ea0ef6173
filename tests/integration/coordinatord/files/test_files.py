"""Upload routes: responses, stored content, and retention."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import httpx
import pytest

from coordinatord.api.files.files import Uploads
from coordinatord.api.files.files_sql import FileRow, object_key
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import RelayBusy, Relaying
from tests.integration.coordinatord.scene.faults import status, unreachable
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage


@pytest.fixture
def stage_settings() -> dict[str, object]:
    return {"MAX_BLOB_BYTES": 200_000}  # exceeded quickly


@pytest.fixture(autouse=True)
async def _signed_in(client: Party, stranger: Party) -> None:
    await client.sign_in()
    await stranger.sign_in()


async def nothing_is_kept(stage: Stage) -> None:
    assert await stage.fetchval("select count(*) from files") == 0


async def expire(stage: Stage) -> None:
    await stage.execute("update files set expires_at = clock_timestamp() - interval '1 second'")


@shows("POST /v1/files", 200)
@shows("GET /v1/files/{id}", 200)
@shows("GET /v1/files/{id}/content", 200)
async def test_upload_is_told_and_given_back_to_its_owner(client: Party, stage: Stage) -> None:
    content = b'{"a": 1}\n\n{"b": 2}'
    answer = await client.upload("batch", content, name="folder/schöne Zeilen;.jsonl")
    file = answer.json()
    assert answer.status_code == 200
    assert file | {"id": "", "created_at": 0, "expires_at": 0, "svc": 0} == {
        "id": "",
        "object": "file",
        "bytes": len(content),
        "created_at": 0,
        "expires_at": 0,
        "filename": "schöne Zeilen;.jsonl",
        "purpose": "batch",
        "status": "uploaded",
        "svc": 0,
    }
    assert file["svc"]["lines"] == 2
    assert file["expires_at"] - file["created_at"] == 300
    assert (await client.read_file(file["id"])).json() == file
    given = await client.read_file(file["id"], "/content")
    assert given.content == content
    assert given.headers["content-type"] == "application/jsonl"
    assert given.headers["content-disposition"] == (
        "attachment; filename=\"sch_ne Zeilen_.jsonl\"; filename*=UTF-8''sch%C3%B6ne%20Zeilen%3B.jsonl"
    )
    pinned = await stage.ground.pins.get(object_key(file["id"]))
    assert pinned == content


async def test_range_of_a_file_is_206_and_one_outside_416(client: Party, stage: Stage) -> None:
    path = f"/v1/files/{(await client.upload('result', b'0123456789')).json()['id']}/content"

    async def ask(**headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await stage.http.get(path, headers=client.authorization | sent)

    part = await ask(range="bytes=2-5")
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"2345", "bytes 2-5/10")
    assert part.headers["content-type"] == "application/octet-stream"
    outside = await ask(range="bytes=10-")
    assert (outside.status_code, outside.headers["content-range"]) == (416, "bytes */10")
    assert (await ask(range="bytes=2-5", if_range=part.headers["etag"])).status_code == 206
    assert (await ask(range="bytes=2-5", if_range='"another"')).content == b"0123456789"
    head = await stage.http.head(path, headers=client.authorization)
    assert (head.headers["content-length"], head.content) == ("10", b"")


@shows("POST /v1/files", 400, "invalid_request_error")
@shows("POST /v1/files", 400, "invalid_purpose")
@shows("POST /v1/files", 400, "empty_file")
@shows("POST /v1/files", 400, "too_many_lines")
@shows("POST /v1/files", 400, "bad_container")
async def test_upload_that_is_refused_leaves_nothing(client: Party, stage: Stage) -> None:
    file = ("file", ("a", b"content"))
    purpose = ("purpose", (None, b"result"))
    cases: list[tuple[Any, str | None]] = [
        ([file, purpose], None),
        ([purpose, file, file], None),
        ([purpose], None),
        ([purpose, ("file", (None, b"content"))], None),
        ([("purpose", (None, b"anything")), file], "invalid_purpose"),
        ([("purpose", (None, b"batch_output")), file], "invalid_purpose"),
        ([purpose, ("file", ("a", b""))], "empty_file"),
        ([("purpose", (None, b"batch")), ("file", ("a", b"\n \r\n"))], "empty_file"),
        ([("purpose", (None, b"batch")), ("file", ("a", b"{}\n" * 50_001))], "too_many_lines"),
        ([("purpose", (None, b"input")), file], "bad_container"),
    ]
    for parts, code in cases:
        answer = await stage.http.post("/v1/files", files=parts, headers=client.authorization)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), parts
        assert answer.headers["x-svc-retryable"] == "false"
    assert (await stage.http.post("/v1/files", json={}, headers=client.authorization)).status_code == 400
    await nothing_is_kept(stage)


@shows("POST /v1/files", 413, "file_too_large")
async def test_file_over_the_limit_is_413_and_one_at_the_limit_is_kept(client: Party, stage: Stage) -> None:
    most = stage.ground.config.max_blob_bytes
    assert (await client.upload("result", b"x" * (most + 1))).json()["error"]["code"] == "file_too_large"
    await nothing_is_kept(stage)
    assert (await client.upload("result", b"x" * most)).status_code == 200


@shows("POST /v1/files", 503, "store_unavailable")
@shows("POST /v1/files", 503, "store_rejected")
async def test_store_that_fails_is_503_and_nothing_is_kept(client: Party, stage: Stage) -> None:
    for rule, code in ((unreachable, "store_unavailable"), (status(403), "store_rejected")):

        def failing(request: httpx.Request, rule: Any = rule) -> httpx.Response | None:
            answer: httpx.Response | None = rule(request) if request.method == "PUT" else None
            return answer

        with stage.store.answering(failing):
            answer = await client.upload("result", b"x")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
        assert answer.headers["x-svc-retryable"] == "true"
    await nothing_is_kept(stage)


@shows("GET /v1/files/{id}/content", 503, "object_missing")
async def test_content_that_the_store_lost_is_object_missing(client: Party, stage: Stage) -> None:
    file_id = (await client.upload("result", b"x")).json()["id"]
    await stage.ground.pins.delete(object_key(file_id))
    answer = await client.read_file(file_id, "/content")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "object_missing")


async def test_caller_who_goes_away_midway_leaves_nothing(client: Party, stage: Stage) -> None:
    sent = anyio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield (
            b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nresult\r\n'
            b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 1000
        )
        sent.set()
        await anyio.sleep_forever()

    async def upload() -> None:
        headers = client.authorization | {"content-type": "multipart/form-data; boundary=b"}
        await stage.http.post("/v1/files", content=endless(), headers=headers)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(upload)
        await sent.wait()
        await anyio.wait_all_tasks_blocked()
        assert await stage.fetchval("select count(*) from files") == 1
        tasks.cancel_scope.cancel()
    await nothing_is_kept(stage)


async def test_input_upload_posts_a_job_and_is_then_kept(client: Party, stage: Stage) -> None:
    container = client.container(b"payload")
    file = (await client.upload("input", container)).json()
    body = await client.paid(container)
    body.pop("container")
    answer = await stage.http.post("/v1/jobs", json=body | {"container_cid": file["svc"]["cid"]})
    assert (answer.status_code, answer.json()["task_cid"]) == (201, file["svc"]["cid"])
    kept = (await client.read_file(file["id"])).json()
    assert kept["expires_at"] - kept["created_at"] == stage.ground.config.file_retention_seconds
    await expire(stage)
    await stage.sweep()
    assert (await client.read_file(file["id"])).status_code == 404
    assert not await stage.stored(object_key(file["id"]))


async def test_upload_of_another_owner_or_purpose_posts_nothing(client: Party, stranger: Party, stage: Stage) -> None:
    container = client.container(b"payload")
    body = await client.paid(container)
    body.pop("container")

    async def post(upload: httpx.Response) -> str:
        named = body | {"container_cid": upload.json()["svc"]["cid"]}
        code: str = (await stage.http.post("/v1/jobs", json=named)).json()["error"]["code"]
        return code

    assert await post(await stranger.upload("input", container)) == "unknown_container"
    assert await post(await client.upload("result", container)) == "unknown_container"
    assert await post(await client.upload("input", client.container(b"other"))) == "commitment_mismatch"
    lapsed = await client.upload("input", container)
    await expire(stage)
    assert await post(lapsed) == "unknown_container"


async def test_result_upload_settles_a_job_and_is_then_kept(client: Party, provider: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    assert (await provider.run(provider.claim(job))).status_code == 201
    file = (await provider.upload("result", b"sealed")).json()
    cid = file["svc"]["cid"]
    foreign = (await client.upload("result", b"another's")).json()["svc"]["cid"]
    refused = await provider.run(provider.settle(job, result_cid=foreign))
    assert refused.json()["error"]["code"] == "unknown_result"
    settled = await provider.run(provider.settle(job, result_cid=cid))
    assert (settled.status_code, settled.json()["result_cid"]) == (201, cid)
    assert await stage.fetchval("select attached from files where id = $1", file["id"])


async def naming_an_upload(purpose: str, client: Party, provider: Party) -> tuple[str, Callable[[], Awaitable[Any]]]:
    """Upload, and return its id with the op that references it."""
    content = client.container(b"payload")
    if purpose == "result":
        job = (await client.post())["job_id"]
        assert (await provider.run(provider.claim(job))).status_code == 201
        file = (await provider.upload("result", b"sealed")).json()
        op = provider.settle(job, result_cid=file["svc"]["cid"])
        return file["id"], lambda: provider.run(op)
    file = (await client.upload("input", content)).json()
    body = await client.paid(content) | {"container_cid": file["svc"]["cid"]}
    body.pop("container")
    return file["id"], lambda: client.http.post("/v1/jobs", json=body)


@pytest.mark.parametrize("purpose", ["input", "result"])
async def test_upload_is_kept_while_an_op_that_names_it_is_under_way(
    client: Party, provider: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch, purpose: str
) -> None:
    file, op = await naming_an_upload(purpose, client, provider)
    kept: list[bool] = []

    async def submit(_: Relaying, __: NewRelay) -> RelayBusy:
        await expire(stage)
        await stage.sweep()
        kept.append(await stage.stored(object_key(file)))
        return RelayBusy()

    monkeypatch.setattr(Relaying, "submit", submit)
    assert (await op()).status_code == 429
    assert kept == [True]


@pytest.mark.parametrize("purpose", ["input", "result"])
async def test_expired_upload_drops_its_unsent_op(
    client: Party, provider: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch, purpose: str
) -> None:
    file, op = await naming_an_upload(purpose, client, provider)
    relays = await stage.fetchval("select count(*) from relays")
    hold = Uploads.hold

    async def late(uploads: Uploads, upload: FileRow, job_id: bytes) -> bool:
        await expire(stage)
        await stage.sweep()
        return await hold(uploads, upload, job_id)

    monkeypatch.setattr(Uploads, "hold", late)
    refused = await op()
    unknown = "unknown_container" if purpose == "input" else "unknown_result"
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, unknown)
    assert await stage.fetchval("select count(*) from relays") == relays
    assert not await stage.stored(object_key(file))


async def test_upload_expires_unless_an_op_or_job_uses_it(client: Party, stage: Stage) -> None:
    lapsed = (await client.upload("result", b"lapsed")).json()["id"]
    held = (await client.upload("result", b"held")).json()["id"]
    await stage.execute("update files set held_until = clock_timestamp() + interval '1 minute' where id = $1", held)
    # The job was posted, but the process died before recording it.
    container = client.container(b"payload")
    named = (await client.upload("input", container)).json()
    job = (await client.post(container=container))["job_id"]
    await stage.execute("update files set held_for = $1 where id = $2", bytes.fromhex(job[2:]), named["id"])
    await expire(stage)
    await stage.sweep()
    assert [await stage.stored(object_key(file)) for file in (lapsed, held, named["id"])] == [False, True, True]
    assert (await client.read_file(named["id"])).status_code == 200
