"""OpenAI's Python client, with a session token as its key, behaves as docs/developers/openai.md says."""

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest

from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, until
from tests.support.fakes.submissions import jsonl


@pytest.fixture
def sdk(stage: Stage, batching: Batching) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://coordinator/v1", api_key=batching.owner.token, max_retries=0, http_client=stage.http
    )


async def test_client_lists_models_uploads_creates_polls_and_downloads(
    sdk: openai.AsyncOpenAI, batching: Batching, provider: Party, stage: Stage
) -> None:
    models = [model async for model in sdk.models.list()]
    assert {model.object for model in models} == {"model"}
    assert (await sdk.models.retrieve(models[0].id)).id == models[0].id

    line = batching.submitter.line()
    upload = await sdk.files.create(file=("in.jsonl", jsonl([line, b"no json"])), purpose="batch")
    assert (upload.object, upload.purpose, upload.status) == ("file", "batch", "uploaded")
    batch = await sdk.batches.create(
        input_file_id=upload.id, endpoint="/v1/responses", completion_window="24h", metadata={"a": "b"}
    )
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"a": "b"})
    await until(lambda: stage.http.get(f"/v1/jobs/{line['job_id']}"), 200)
    assert (await provider.run(provider.claim(line["job_id"]))).status_code == 201
    assert (await provider.run(provider.settle(line["job_id"], result="AAAA"))).status_code == 201
    with anyio.fail_after(60):
        while batch.status != "completed":
            await anyio.sleep(0.05)
            batch = await sdk.batches.retrieve(batch.id)
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.completed, counts.failed, counts.total) == (1, 1, 2)
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    output = (await sdk.files.content(batch.output_file_id)).text
    assert output.startswith(f'{{"id":"batch_req_{batch.id}_1"')
    assert line["job_id"] in output
    error = await sdk.files.retrieve(batch.error_file_id)
    assert (error.purpose, error.status) == ("batch_output", "processed")
    assert '"code":"invalid_json"' in (await sdk.files.content(error.id)).text


async def test_expiry_must_equal_the_retention(sdk: openai.AsyncOpenAI, batching: Batching, stage: Stage) -> None:
    kept = stage.ground.config.file_retention_seconds
    content = jsonl([batching.submitter.line()])
    upload = await sdk.files.create(
        file=("in.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": kept}
    )
    terms: Any = {"input_file_id": upload.id, "endpoint": "/v1/responses", "completion_window": "24h"}
    for refuse in (
        sdk.files.create(
            file=("in.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        ),
        sdk.batches.create(**terms, output_expires_after={"anchor": "created_at", "seconds": 3600}),
    ):
        with pytest.raises(openai.BadRequestError, match=f"created_at and seconds {kept}") as refused:
            await refuse
        assert refused.value.param in ("expires_after", "output_expires_after")
    batch = await sdk.batches.create(**terms, output_expires_after={"anchor": "created_at", "seconds": kept})
    assert batch.status == "validating"
    count = await stage.fetchval("select count(*) from files where purpose = 'batch'")
    assert count == 1  # nothing of the refused upload is left


ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "developers" / "openai.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
LINES = b'{"url": "/v1/responses"}\n'


def rows(section: str) -> Iterator[list[str]]:
    """Return the cells of its table, without backquotes."""
    for line in SECTIONS[section].splitlines():
        if line.startswith("| `"):
            yield [cell.strip("` ") for cell in line.strip("|").split(" | ")]


Call = Callable[[openai.AsyncOpenAI], Awaitable[Any]]


async def uploaded(sdk: openai.AsyncOpenAI) -> str:
    return (await sdk.files.create(file=("lines.jsonl", LINES), purpose="batch")).id


async def created(sdk: openai.AsyncOpenAI, **more: Any) -> Any:
    body = {"endpoint": "/v1/responses", "completion_window": "1h", "input_file_id": await uploaded(sdk), **more}
    return await sdk.batches.create(**body)


async def every_model(sdk: openai.AsyncOpenAI) -> bool:
    return "demo/text-small" in [model.id async for model in sdk.models.list()]


async def one_model(sdk: openai.AsyncOpenAI) -> bool:
    found: Any = await sdk.models.retrieve("demo/text-small")
    return bool(found.svc["model_id"] == "1")


async def upload(sdk: openai.AsyncOpenAI) -> bool:
    return (await sdk.files.create(file=("lines.jsonl", LINES), purpose="batch")).purpose == "batch"


async def one_file(sdk: openai.AsyncOpenAI) -> bool:
    return (await sdk.files.retrieve(await uploaded(sdk))).bytes == len(LINES)


async def content(sdk: openai.AsyncOpenAI) -> bool:
    return (await sdk.files.content(await uploaded(sdk))).content == LINES


async def one_batch_for_one_key(sdk: openai.AsyncOpenAI) -> bool:
    file, key = await uploaded(sdk), {"idempotency-key": "python-1"}
    ids = {(await created(sdk, input_file_id=file, extra_headers=key)).id for _ in range(2)}
    return len(ids) == 1


async def one_batch(sdk: openai.AsyncOpenAI) -> bool:
    made = await created(sdk)
    return (await sdk.batches.retrieve(made.id)).id == str(made.id)


async def every_batch(sdk: openai.AsyncOpenAI) -> bool:
    ids = [(await created(sdk)).id for _ in range(2)]
    return [batch.id async for batch in sdk.batches.list(limit=1)][:2] == ids[::-1]


async def cancelled(sdk: openai.AsyncOpenAI) -> bool:
    """Cancel, unless the batch has ended: a line that orders nothing ends at once."""
    try:
        return (await sdk.batches.cancel((await created(sdk)).id)).status == "cancelling"
    except openai.BadRequestError as refused:
        return refused.code == "batch_not_cancellable"


WORKS: dict[str, Callable[[openai.AsyncOpenAI], Awaitable[bool]]] = {
    "models.list": every_model,
    "models.retrieve": one_model,
    "files.create": upload,
    "files.retrieve": one_file,
    "files.content": content,
    "batches.create": one_batch_for_one_key,
    "batches.retrieve": one_batch,
    "batches.list": every_batch,
    "batches.cancel": cancelled,
}
REFUSED: dict[str, Call] = {
    "files.create, another purpose": lambda sdk: sdk.files.create(file=("a", LINES), purpose="fine-tune"),
    "files.list": lambda sdk: sdk.files.list().__aiter__().__anext__(),
    "files.delete": lambda sdk: sdk.files.delete("file-0123456789abcdef01234567"),
    "uploads.create": lambda sdk: sdk.uploads.create(bytes=1, filename="a", mime_type="a/b", purpose="batch"),
    "batches.create, another endpoint": lambda sdk: created(sdk, endpoint="/v1/chat/completions"),
    "responses.create": lambda sdk: sdk.responses.create(model="demo/text-small", input="hello"),
    "chat.completions.create": lambda sdk: sdk.chat.completions.create(model="demo/text-small", messages=[]),
    "embeddings.create": lambda sdk: sdk.embeddings.create(model="demo/text-small", input="hello"),
}


async def test_what_the_page_says_works_does(sdk: openai.AsyncOpenAI) -> None:
    promised = [call for call, _ in rows("What works")]
    assert promised == list(WORKS)
    assert [call for call in promised if not await WORKS[call](sdk)] == []


async def test_what_the_page_says_does_not_work_is_refused_as_it_says(sdk: openai.AsyncOpenAI) -> None:
    told = {call: answer for call, answer, _ in rows("What does not")}
    assert told.keys() == REFUSED.keys()
    came = {}
    for call, act in REFUSED.items():
        with pytest.raises(openai.APIStatusError) as refused:
            await act(sdk)
        came[call] = f"{refused.value.status_code} {refused.value.code or refused.value.type}"
    assert came == told
