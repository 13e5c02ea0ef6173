from typing import Final

import pytest

from common.scalars import base64_of
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage

pytestmark = pytest.mark.anyio

TIMES: Final = ("reclaimable_at", "ended_at")


@shows("POST /v1/jobs", 402)
@shows("POST /v1/jobs", 201)
@shows("GET /v1/jobs/{id}", 200)
async def test_posted_job_is_readable_when_the_201_returns(client: Party, stage: Stage) -> None:
    posted = await client.post()
    job = (await stage.http.get(f"/v1/jobs/{posted['job_id']}")).json()
    assert job["status"] == "queued"
    assert job["svc"]["task_cid"] == posted["task_cid"]
    assert await stage.stored(f"containers/{posted['job_id'][2:]}")


async def told_of(stage: Stage, job: str) -> tuple[Body, Body]:
    """Return the job's own members as its client sees it, and its row of the book."""
    client_view = (await stage.http.get(f"/v1/jobs/{job}")).json()["svc"]
    row = (await stage.http.get(f"/evm/jobs/{job}")).json()
    assert [client_view.get(name) for name in TIMES] == [row.get(name) for name in TIMES]
    return client_view, row


async def time_of_newest(stage: Stage) -> int:
    block = await stage.world.anvil.call("eth_getBlockByNumber", "latest", False)
    return int(block["timestamp"], 16)


async def test_job_shows_its_reclaim_time_or_its_end(client: Party, provider: Party, stage: Stage) -> None:
    job, other = (await client.post())["job_id"], (await client.post())["job_id"]
    told, _ = await told_of(stage, job)
    assert "reclaimable_at" not in told
    assert "ended_at" not in told
    assert told["amount"] == str(3_000 + 75 + 2_000)
    assert (await provider.run(provider.claim(job))).status_code == 201
    told, row = await told_of(stage, job)
    assert int(told["reclaimable_at"]) == int(row["claimed_at"]) + 3600
    index = await stage.fetchval("select block_number from index_position")
    assert isinstance(index, int)
    assert int(told.get("reclaimable_block", index + 1)) > index  # an estimate, once two blocks are a second apart
    assert "ended_at" not in told
    assert (await provider.run(provider.fail(job))).status_code == 201
    ended_at = await time_of_newest(stage)
    told, _ = await told_of(stage, job)
    assert ("reclaimable_at" in told, told["ended_at"]) == (False, str(ended_at))
    cancelled = await stage.http.post(f"/v1/jobs/{other}/cancel", json=client.cancel(other))
    assert cancelled.status_code == 200
    told, _ = await told_of(stage, other)
    assert told["ended_at"] == str(await time_of_newest(stage))
    listed = (await stage.http.get("/evm/jobs?state=Cancelled")).json()["jobs"]
    assert {each["ended_at"] for each in listed} == {str(ended_at), told["ended_at"]}


async def test_settled_job_reports_its_cost_and_parts(client: Party, provider: Party, stage: Stage) -> None:
    job, other = (await client.post())["job_id"], (await client.post())["job_id"]
    for each in (job, other):
        assert (await provider.run(provider.claim(each))).status_code == 201
    assert "cost" not in (await told_of(stage, job))[0]
    settled = await provider.run(provider.settle(job, completion_tok=500, result=base64_of(b"the sealed result")))
    assert settled.status_code == 201
    assert (await provider.run(provider.fail(other))).status_code == 201
    told, _ = await told_of(stage, job)
    assert told["cost"] == str(2_000 + 50 + 2_000)  # 1000 units in at 1, 500 out at 2
    assert told["cost_parts"] == {"provider": "2000", "fee": "50", "gas_fee": "2000"}
    assert "cost" not in (await told_of(stage, other))[0]
