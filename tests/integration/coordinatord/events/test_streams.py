"""Event streams as clients see them: live, resumed, withdrawn, refused, limited and ended."""

import anyio
import pytest

from common.scalars import base64_of
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.faults import unreachable
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage, until
from tests.integration.coordinatord.scene.streams import Streams

pytestmark = pytest.mark.anyio


NO_JOB = "0x" + "12" * 32


@shows("GET /v1/jobs/{id}/events", 200)
@shows("GET /evm/events", 200)
async def test_stream_reports_a_jobs_life_and_resumes(client: Party, provider: Party, streams: Streams) -> None:
    job = (await client.post())["job_id"]
    of_job = f"/v1/jobs/{job}/events"
    async with streams.open(of_job) as followed, streams.open(f"/evm/events?owner={client.address}") as owned:
        assert followed.response.headers["content-type"] == "text/event-stream"
        assert followed.response.headers["x-accel-buffering"] == "no"
        began = await owned.block()  # the initial id, without an event
        assert (began.name, began.data) == ("", None)
        first = await followed.next()
        assert (first.name, first.data["status"], first.id) == ("posted", "queued", began.id)
        await provider.run(provider.claim(job))
        claimed = await followed.next()
        assert (claimed.name, claimed.data["status"], claimed.data["provider_id"]) == ("claimed", "in_progress", "1")
        assert await owned.next() == claimed
        row = (await client.http.get(f"/evm/jobs/{job}")).json()
        assert (row["state"], row["claimed_at"]) == (claimed.data["state"], claimed.data["block_time"])
    await provider.run(provider.settle(job, result=base64_of(b"sealed result")))
    for path, headers in (
        (of_job, {"last-event-id": first.id}),
        (f"{of_job}?after={first.id}", {}),
        ("/evm/events?provider=1&after=0", {"last-event-id": first.id}),
    ):
        async with streams.open(path, headers) as back:
            assert await back.next() == claimed
            assert ((settled := await back.next()).name, settled.data["status"]) == ("settled", "completed")
    async with streams.open(of_job) as late:
        assert ((present := await late.next()).name, present.data["ended_because"]) == ("settled", 1)


@shows("GET /v1/batches/{id}/events", 200)
async def test_batch_is_told_at_once_and_whenever_it_has_changed(
    batching: Batching, provider: Party, stage: Stage, streams: Streams
) -> None:
    (line,) = batching.submitter.lines(1)
    job = line["job_id"]
    batch = await batching.create(line)
    async with streams.open(f"/v1/batches/{batch['id']}/events", batching.owner.authorization) as followed:
        told = await followed.next()
        assert (told.name, told.data["id"]) == ("batch", batch["id"])
        while not told.data["request_counts"]["total"]:
            told = await followed.next()
        await until(lambda: stage.http.get(f"/v1/jobs/{job}"), 200)
        await provider.run(provider.claim(job))
        await provider.run(provider.settle(job, result=base64_of(b"sealed result")))
        while told.data["status"] != "completed":
            told = await followed.next()
        assert told.data["request_counts"] == {"completed": 1, "failed": 0, "total": 1}


@shows("GET /v1/jobs/{id}/events", 404, "not_found")
@shows("GET /v1/jobs/{id}/events", 400, "invalid_request_error")
@shows("GET /v1/batches/{id}/events", 404, "not_found")
@shows("GET /evm/events", 400, "invalid_request_error")
async def test_what_cannot_be_followed_is_refused_as_it_is_read(client: Party, streams: Streams) -> None:
    await client.sign_in()
    for path, headers, status in (
        (f"/v1/jobs/{NO_JOB}/events", {}, 404),
        ("/v1/jobs/0x12/events", {}, 400),
        (f"/v1/jobs/{NO_JOB}/events", {"last-event-id": "x"}, 400),
        ("/evm/events?after=-1", {}, 400),
        ("/evm/events?state=open", {}, 400),
        ("/v1/batches/none/events", client.authorization, 404),
    ):
        async with streams.open(path, headers) as refused:
            assert refused.response.status_code == status, path


async def test_streams_end_with_a_word_when_the_process_stops(stage: Stage, streams: Streams) -> None:
    async with streams.open("/evm/events") as followed:
        await followed.block()
        stage.ground.events.close()
        assert "this process stops: reconnect with Last-Event-ID" in await followed.ended()


async def test_stream_that_is_left_gives_its_place_back(stage: Stage, streams: Streams) -> None:
    async with streams.open("/evm/events") as followed:
        await followed.block()
        assert len(stage.ground.events._topics) == 1
    with anyio.fail_after(30):
        while stage.ground.events._topics:  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.01)


@shows("GET /v1/batches/{id}/events", 503, "not_ready")
async def test_nothing_is_followed_while_the_index_trails(client: Party, stage: Stage, streams: Streams) -> None:
    await client.sign_in()
    with stage.node.answering(unreachable):
        await until(lambda: stage.http.get("/readyz"), 503)
        async with streams.open("/v1/batches/none/events", client.authorization) as refused:
            assert refused.response.status_code == 503


@shows("GET /evm/events", 429, "busy")
@shows("GET /v1/jobs/{id}/events", 429, "busy")
@shows("GET /v1/batches/{id}/events", 429, "busy")
@pytest.mark.parametrize("stage_settings", [{"event_listeners_per_caller": 1, "event_listeners": 1}], ids=["limited"])
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
