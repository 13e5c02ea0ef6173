"""The file and batch routes through OpenAI's client, with a session token as its key."""

from typing import Any

import anyio
import openai
import pytest

from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, until
from tests.support.fakes.submissions import jsonl

pytestmark = pytest.mark.anyio


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


async def test_client_pages_cancels_and_reads_errors(sdk: openai.AsyncOpenAI, batching: Batching) -> None:
    waits = await batching.create(batching.submitter.line())
    ids = [(await batching.create(b"{}"))["id"] for _ in range(4)]
    assert [batch.id async for batch in sdk.batches.list(limit=2)] == [*reversed(ids), waits["id"]]
    assert (await sdk.batches.cancel(waits["id"])).status == "cancelling"
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.batches.create(input_file_id="file-none", endpoint="/v1/responses", completion_window="24h")
    assert refused.value.code == "invalid_input_file"
    with pytest.raises(openai.NotFoundError):
        await sdk.batches.retrieve("batch_none")
