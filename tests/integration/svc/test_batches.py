"""Batches through a real coordinator, on both event loops."""

import anyio
import pytest

from svc.client import Client
from svc.errors import PlanShort
from svc.records import Batch
from tests.integration.svc.working_provider import RATE_IN, RATE_OUT, WorkingProvider

MODEL = "demo/text-small"
RATES = {"rate_in": RATE_IN, "rate_out": RATE_OUT}


async def test_every_line_comes_back_opened_under_its_own_id(
    client: Client, provider: WorkingProvider, provider_id: int
) -> None:
    lines = [
        {"custom_id": f"line {n}", "body": {"model": MODEL, "input": f"text {n}", "max_output_tokens": 9, **rates}}
        for n, rates in enumerate([{}, RATES, {}, RATES])
    ]
    (plan,) = await client.batches.plan(lines, window="1h")
    assert [(share.provider_id, share.lines) for share in plan.allocation] == [(provider_id, 2)]
    prepared = await client.batches.prepare(lines, window="async", providers=[provider_id])
    seen: list[Batch] = []
    async with anyio.create_task_group() as tasks:
        batch = await client.batches.create(prepared, metadata={"for": "test"})
        tasks.start_soon(provider.work)
        ended = await client.batches.wait(batch.id, every=0.1, progress=seen.append)
        tasks.cancel_scope.cancel()
    assert (ended.status, ended.request_counts.completed, ended.metadata) == ("completed", 4, {"for": "test"})
    assert seen[-1] == ended
    results = [one async for one in client.batches.results(ended, custom_ids=prepared.custom_ids)]
    assert [(one.custom_id, one.job_id) for one in results] == [
        (f"line {n}", job_id) for n, job_id in enumerate(prepared.job_ids)
    ]
    assert [one.result.output["text"] for one in results if one.result] == [f"{n} txet" for n in range(4)]
    assert [one.result.output["for"] for one in results if one.result] == [f"line {n}" for n in range(4)]
    assert (await client.batches.list(limit=1)).data == (ended,)


async def test_batch_that_the_network_cannot_take_is_not_begun(client: Client, provider: WorkingProvider) -> None:
    lines = [{"body": {"model": MODEL, "input": "x"}} for _ in range(200)]
    with pytest.raises(PlanShort) as short:
        await client.batches.prepare(lines, window="1h")
    assert 0 < short.value.planned < short.value.wanted == 200


async def test_batch_is_cancelled_once_and_for_all(client: Client) -> None:
    lines = [{"custom_id": str(n), "body": {"model": MODEL, "input": str(n), **RATES}} for n in range(3)]
    batch = await client.batches.create(await client.batches.prepare(lines, window="1h"))
    for _ in range(2):
        assert (await client.batches.cancel(batch.id)).cancelling_at is not None
