"""A client based only on the specification and `docs/protocol`, with a real coordinator."""

import attrs
import pytest

from tests.integration.coordinatord.scene.fulfilment import fulfil
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage
from tests.support.specification_client.client import SpecificationClient, Terms

pytestmark = pytest.mark.anyio


@pytest.fixture
def stage_settings() -> dict[str, object]:
    return {"ESCROW_MODE": "static", "OPERATOR_KEY": "0a" * 32}


@pytest.fixture
async def reader(stage: Stage) -> SpecificationClient:
    """Who has read the specification."""
    account = stage.world.wallets.with_role("client")[0]
    client = SpecificationClient(stage.http, stage.world.pins.gateway, account.private_key)
    await client.connect()
    return client


async def test_designated_job_is_bought_at_the_ask_and_opened(
    reader: SpecificationClient, stage: Stage, provider: Party
) -> None:
    account = stage.world.wallets.with_role("provider")[0]
    provider_id = stage.world.market.provider_ids[account.address]
    published = await provider.publish(provider.asks(provider_id, (1, 3600, 150_000, 600_000)))
    assert published.status_code == 200, published.text
    await stage.http.get("/evm/jobs?free=1&state=Open&model=1", headers=provider.authorization)
    terms = Terms("demo/text-small", 3600, rate_in=0, rate_out=0, units_in=100, units_out=200)
    (candidate,) = await reader.candidates(terms)
    asked = {name: int(candidate[name]) for name in ("rate_in", "rate_out")}
    terms = attrs.evolve(terms, provider=int(candidate["provider_id"]), **asked)
    prepared = await reader.prepare(terms, {"input": "sealed jobs — ‖ 封"})
    quote = await reader.quote(prepared)
    assert int(quote["cap"]) == -(-(150_000 * 100 + 600_000 * 200) // 10**6)
    submitted = await reader.submit(prepared, quote)
    assert submitted["job_id"] == prepared.job_id
    envelope = await fulfil(stage, provider, account, prepared.job_id)
    assert envelope.model == "demo/text-small"
    job = await reader.wait(prepared.job_id)
    assert job["status"] == "completed"
    body = await reader.result(job)
    assert body["output"] == "封 ‖ — sboj delaes"
    assert body["usage"] == {"output_tokens": 17}


async def test_open_job_is_sealed_to_the_verified_escrow(
    reader: SpecificationClient, stage: Stage, provider: Party
) -> None:
    account = stage.world.wallets.with_role("provider")[0]
    terms = Terms("demo/text-small", 600, rate_in=200_000, rate_out=800_000, units_in=100, units_out=200)
    prepared = await reader.prepare(terms, {"input": "whoever comes first"})
    await reader.submit(prepared, await reader.quote(prepared))
    await fulfil(stage, provider, account, prepared.job_id)
    body = await reader.result(await reader.wait(prepared.job_id))
    assert body["output"] == "tsrif semoc reveohw"


async def test_uploaded_multiframe_container_opens_at_both_ends(
    reader: SpecificationClient, stage: Stage, provider: Party
) -> None:
    account = stage.world.wallets.with_role("provider")[0]
    provider_id = stage.world.market.provider_ids[account.address]
    text = "0123456789abcdef" * 10_000  # 160,000 bytes: two full frames and a part of one
    terms = Terms("demo/text-small", 600, 1, 1, units_in=50_000, units_out=200_000, provider=provider_id)
    await reader.sign_in()
    prepared = await reader.prepare(terms, {"input": text})
    await reader.submit_uploaded(prepared, await reader.quote(prepared))
    await fulfil(stage, provider, account, prepared.job_id)
    body = await reader.result(await reader.wait(prepared.job_id))
    assert body["output"] == text[::-1]


async def test_cancelled_job_ends_as_cancelled(reader: SpecificationClient) -> None:
    terms = Terms("demo/text-small", 3600, 1, 1, units_in=10, units_out=10, provider=1)
    prepared = await reader.prepare(terms, {"input": "never mind"})
    await reader.submit(prepared, await reader.quote(prepared))
    await reader.cancel(prepared.job_id)
    assert (await reader.wait(prepared.job_id))["status"] == "cancelled"
