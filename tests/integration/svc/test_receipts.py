"""Compare receipts of settled and reorged jobs from a real coordinator with the chain's blocks."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import attrs
import pytest
from anyio import to_thread
from click.testing import CliRunner

from common.receipt import verify_receipt
from svc.cli.main import svc
from svc.client import Client
from svc.errors import OrderRefused, ResultUnreadable
from svc.receipts import Receipts, check_blocks, check_hashes
from tests.integration.svc.conftest import Shop
from tests.integration.svc.working_provider import WorkingProvider

MODEL = "demo/text-small"


@pytest.fixture
async def client(shop: Shop, anyio_backend: str) -> AsyncIterator[Client]:
    """A client with a node of the chain."""
    async with Client(environment=shop.options, rpc_url=shop.world.anvil.rpc_url) as client:
        yield client


async def settled(client: Client, provider: WorkingProvider) -> str:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.work)
        result = await client.run(MODEL, "sealed", window="async", final=True)
        tasks.cancel_scope.cancel()
    return result.job_id


async def test_receipt_of_a_settled_job_is_proved_by_blocks(client: Client, provider: WorkingProvider) -> None:
    job = await client.jobs.row(await settled(client, provider))
    proved = verify_receipt(await client.receipt(job.job_id))
    facts = {fact.name: fact.value for fact in proved.facts}
    assert "0x" + proved.job_id.hex() == job.job_id
    assert facts["owner"] == client.address.lower()
    assert facts["result"] == f"{job.result_cid}, {job.completion_tok} units"
    assert facts["claimed"].startswith(f"by provider {job.provider_id},")
    chain = client.market_verifier.chain
    assert chain is not None
    await check_blocks(chain.new_snapshot(), proved)
    receipts = Receipts(chain.new_snapshot(), (await client._account.market()).receipt_market)
    with pytest.raises(ResultUnreadable, match="but the chain has no post of the job") as unproved:
        await receipts.build_receipt(proved.job_id, job.posted_block + 1)
    assert unproved.value.code == "receipt_unproved"
    higher = attrs.evolve(proved, blocks=(attrs.evolve(proved.blocks[0], number=1 << 40),))
    with pytest.raises(ResultUnreadable, match="the chain ends at block"):
        await check_blocks(chain.new_snapshot(), higher)
    other = attrs.evolve(proved, blocks=(attrs.evolve(proved.blocks[0], hash=bytes(32)),))
    with pytest.raises(ResultUnreadable, match="in the receipt; the chain has 0x"):
        await check_blocks(chain.new_snapshot(), other)
    with pytest.raises(ResultUnreadable, match="not one of the given hashes"):
        check_hashes([bytes(32)], proved)


async def test_receipt_of_a_cancelled_job_shows_no_payment(
    client: Client, provider: WorkingProvider, shop: Shop
) -> None:
    async with Client(environment=shop.options) as without:
        with pytest.raises(OrderRefused, match="no node is set: set rpc_url=, SVC_RPC_URL or --rpc-url"):
            await without.receipt("0x" + "11" * 32)
    prepared = await client.prepare(MODEL, "back", window="async")
    await client.submit(prepared, final=True)
    with pytest.raises(ResultUnreadable) as early:
        await client.receipt(prepared.id)
    assert early.value.code == "no_receipt"
    await client.cancel(prepared.id)
    facts = {fact.name: fact.value for fact in verify_receipt(await client.receipt(prepared.id)).facts}
    assert facts["ended"].startswith("JobCancelled")
    assert "collected" not in facts


async def test_receipt_is_written_and_checked_without_coordinator(
    client: Client, provider: WorkingProvider, shop: Shop, tmp_path: Path
) -> None:
    job, file, run = await settled(client, provider), tmp_path / "job.json", CliRunner().invoke
    rpc_url = shop.world.anvil.rpc_url
    made = await to_thread.run_sync(
        lambda: run(
            svc, ["receipt", job, "--out", str(file), "--rpc-url", rpc_url], env=shop.options, standalone_mode=False
        )
    )
    assert made.return_value == 0, made.output
    checked = await to_thread.run_sync(
        lambda: run(svc, ["receipt", "verify", str(file), "--rpc-url", rpc_url, "--json"], standalone_mode=False)
    )
    assert checked.return_value == 0, checked.output
    assert {fact["name"] for fact in json.loads(checked.stdout)} >= {
        "owner",
        "payment",
        "collected",
        "result",
        "shares",
    }
    said = json.loads(file.read_bytes())
    said["end"]["result_cid"] = said["task_cid"]
    file.write_text(json.dumps(said))
    refused = await to_thread.run_sync(
        lambda: run(svc, ["receipt", "verify", str(file), "--rpc-url", rpc_url], standalone_mode=False)
    )
    assert refused.return_value != 0
    assert "end.result_cid" in refused.output
