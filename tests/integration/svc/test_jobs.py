"""Jobs and batches through a real coordinator, on both event loops."""

import anyio
import pytest

from svc.client import Client
from svc.errors import InvalidRequest, JobFailed, NotFound, PlanShort
from svc.records import Batch
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.svc.conftest import Shop
from tests.integration.svc.working_provider import RATE_IN, RATE_OUT, WorkingProvider

MODEL = "demo/text-small"


async def test_run_takes_the_market_and_returns_the_opened_result(client: Client, provider: WorkingProvider) -> None:
    statuses: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.work)
        result = await client.run(
            MODEL, "sealed", window="async", custom_id="one", on_change=lambda job: statuses.append(job.status)
        )
        final = await result.settled()
        tasks.cancel_scope.cancel()
    assert result.output == {"text": "delaes", "for": "one"}
    assert result.usage == {"output_tokens": 6}
    assert result.job.status == statuses[-1] == "completed"
    assert (final.output, final.cost, final.provisional) == (result.output, result.cost, False)
    assert (await client.jobs.get(result.job_id)).result_cid == result.job.result_cid
    parts = result.cost_parts
    assert parts is not None
    assert parts.provider == -(-(RATE_IN * result.job.svc.units_in + RATE_OUT * 6) // 10**6)
    assert (result.cost, final.cost_parts) == (parts.provider + parts.fee + parts.gas_fee, parts)


async def test_result_arrives_before_blocks_and_becomes_final(
    client: Client, provider: WorkingProvider, shop: Shop
) -> None:
    async with mining_by_hand(shop.world.anvil), anyio.create_task_group() as tasks:
        tasks.start_soon(provider.work_ahead)
        with anyio.fail_after(20):
            result = await client.run(MODEL, "ahead", window="async")
        assert (result.output["text"], result.provisional) == ("daeha", True)
        with pytest.raises(NotFound):
            await client.jobs.get(result.job_id)
        await shop.world.anvil.call("evm_setAutomine", True)
        await shop.world.anvil.call("evm_mine")
        final = await result.settled(timeout=20)
    assert (final.output, final.cost, final.provisional) == (result.output, result.cost, False)
    assert final.job.status == "completed"


async def test_open_order_is_sealed_to_the_escrow(client: Client, provider: WorkingProvider) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.work)
        result = await client.run(MODEL, "open", window="async", rate_in=RATE_IN, rate_out=str(RATE_OUT))
        tasks.cancel_scope.cancel()
    assert result.output["text"] == "nepo"
    assert result.job.svc.designated == 0


async def test_each_step_is_there_by_itself(client: Client, provider: WorkingProvider) -> None:
    (candidate,) = await client.probe(MODEL, "steps", window="async")
    prepared = await client.prepare(
        MODEL, "steps", window="async", provider=candidate.provider_id, rate_in=RATE_IN, rate_out=RATE_OUT, units_out=9
    )
    quoted = await client.quote(prepared)
    assert [row.provider_id for row in quoted.candidates] == [candidate.provider_id]
    with pytest.raises(NotFound):
        await client.jobs.get(prepared.id)
    submitted = await client.submit(prepared, quoted, max_amount=quoted.quote.amount, final=True)
    assert (submitted.job_id, submitted.amount) == (prepared.id, quoted.quote.amount)
    assert [row.job_id for row in await client.jobs.mine(limit=1)] == [prepared.id]
    assert (await client.cancel(prepared.id)).job_id == prepared.id
    ended = await client.wait(prepared.id)
    assert ended.status == "cancelled"
    with pytest.raises(JobFailed) as failed:
        await client.open(ended)
    assert failed.value.code == "cancelled"


async def test_order_that_is_submitted_again_is_one_job(client: Client, provider: WorkingProvider) -> None:
    before = (await client.jobs.summary()).jobs
    prepared = await client.prepare(MODEL, "twice", window="async")
    first = await client.submit(prepared)
    assert (first.job_id, first.rests_on) == (prepared.id, "stored")
    again = await client.submit(prepared, final=True)
    assert (again.job_id, again.rests_on) == (first.job_id, "block")
    assert (await client.jobs.summary()).jobs == before + 1


async def test_errors_of_the_coordinator_say_all_that_they_carry(client: Client) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await client.cancel("0x" + "ab" * 32)
    error = refused.value
    assert (error.type, error.code, error.status) == ("invalid_request_error", "NotTheOwner", 409)
    assert error.request_id
    assert error.retryable is False


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
