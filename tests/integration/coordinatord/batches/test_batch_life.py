"""Batches from their upload to their files."""

import pytest

from common.scalars import base64_of
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage, until
from tests.support.invariants.batches import broken_batches

pytestmark = pytest.mark.anyio


async def settle(provider: Party, job: str) -> None:
    assert (await provider.run(provider.claim(job))).status_code == 201
    settled = await provider.run(provider.settle(job, result=base64_of(b"sealed result")))
    assert settled.status_code == 201, settled.text


@shows("POST /v1/batches", 200)
@shows("GET /v1/batches/{id}", 200)
async def test_batch_output_has_a_line_per_job(
    batching: Batching, client: Party, provider: Party, stage: Stage
) -> None:
    settles, fails, taken_back = batching.submitter.lines(3)
    created = await batching.create(settles, b"", b"no json", fails, taken_back, metadata={"project": "x"})
    assert created["status"] == "validating"
    assert created["metadata"] == {"project": "x"}
    assert created["expires_at"] - created["created_at"] == 86_400
    posted = await batching.until(created["id"], status="in_progress", counts=(0, 1, 4))
    assert posted["output_file_id"] is None
    for line in (settles, fails, taken_back):
        await until(lambda line=line: stage.http.get(f"/v1/jobs/{line['job_id']}"), 200)  # type: ignore[misc]
    await settle(provider, settles["job_id"])
    await provider.run(provider.claim(fails["job_id"]))
    await provider.run(provider.fail(fails["job_id"]))
    cancelled = await stage.http.post(
        f"/v1/jobs/{taken_back['job_id']}/cancel", json=client.cancel(taken_back["job_id"])
    )
    assert cancelled.status_code == 200

    done = await batching.until(created["id"], status="completed", counts=(1, 3, 4))
    (output,) = await batching.lines(done["output_file_id"])
    assert output == {
        "id": f"batch_req_{done['id']}_1",
        "custom_id": None,
        "response": {"status_code": 200, "request_id": settles["job_id"], "body": None},
        "error": None,
        "svc": {
            "job_id": settles["job_id"],
            "result_cid": output["svc"]["result_cid"],
            "provider": 1,
            "rate_in": "1000000",
            "rate_out": "2000000",
            "completion_tok": 10,
        },
    }
    errors = await batching.lines(done["error_file_id"])
    assert [(line["id"].rpartition("_")[2], line["error"]["code"]) for line in errors] == [
        ("3", "invalid_json"),
        ("4", "provider_fail"),
        ("5", "cancelled"),
    ]
    assert [line["svc"] for line in errors] == [
        {"job_id": None, "line": 3},
        {"job_id": fails["job_id"], "line": 4},
        {"job_id": taken_back["job_id"], "line": 5},
    ]
    assert done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"]
    assert await broken_batches(stage.ground.database, stage.ground.pins) == []
