import pytest

from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage

pytestmark = pytest.mark.anyio


@shows("POST /v1/jobs", 402)
@shows("POST /v1/jobs", 201)
@shows("GET /v1/jobs/{id}", 200)
async def test_posted_job_is_readable_when_the_201_returns(client: Party, stage: Stage) -> None:
    posted = await client.post()
    job = (await stage.http.get(f"/v1/jobs/{posted['job_id']}")).json()
    assert job["status"] == "queued"
    assert job["svc"]["task_cid"] == posted["task_cid"]
    assert await stage.stored(f"containers/{posted['job_id'][2:]}")
