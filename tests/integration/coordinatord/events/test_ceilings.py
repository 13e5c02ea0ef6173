"""Limits of event streams and waiting polls. Beyond them a stream is refused, and a poll does not wait."""

from collections.abc import AsyncIterator

import anyio
import pytest

from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Seen, Stage
from tests.integration.coordinatord.scene.streams import Streams, streams_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def stage_settings() -> dict[str, object]:
    return {"event_listeners_per_caller": 1, "event_listeners": 1}


@pytest.fixture
async def streams(stage: Stage, seen: list[Seen]) -> AsyncIterator[Streams]:
    async with streams_of(stage, seen) as opened:
        yield opened


@shows("GET /evm/events", 429, "busy")
@shows("GET /v1/jobs/{id}/events", 429, "busy")
@shows("GET /v1/batches/{id}/events", 429, "busy")
async def test_caller_beyond_its_limit_is_refused_without_waiting(
    batching: Batching, client: Party, provider: Party, streams: Streams
) -> None:
    job = (await client.post())["job_id"]
    batch = await batching.create(*batching.submitter.lines(1))
    async with streams.open("/evm/events") as followed:
        await followed.block()
        for path in ("/evm/events", f"/v1/jobs/{job}/events", f"/v1/batches/{batch['id']}/events"):
            async with streams.open(path, client.authorization) as refused:
                assert refused.response.status_code == 429
                assert refused.response.headers["x-svc-retryable"] == "true"
        with anyio.fail_after(10):
            polled = await streams.http.get(
                "/evm/jobs?state=Open&model=2&free=1&wait=30", headers=provider.authorization
            )
        assert polled.json()["jobs"] == []
