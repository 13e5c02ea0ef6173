"""A client based only on the specification and docs/protocol, with a real coordinator."""

import base64

import attrs
import httpx
import pytest

from common.box import SecretKey, open_sealed
from common.container import open_with_data_key, open_with_secret
from common.envelope import Envelope, ResultBody
from common.scalars import base64_of
from common.sealed_result import seal_result
from devnet.accounts import DevWallet
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage
from tests.support.specification_client.client import SpecificationClient, Terms


async def fulfil(stage: Stage, provider: Party, account: DevWallet, job: str) -> Envelope:
    """Fulfil the job and settle it. Return the envelope that the client sealed."""
    claimed = await provider.run(provider.claim(job))
    assert claimed.status_code == 201, claimed.text
    envelope = Envelope.parse(await _opened(stage, provider, account, job))
    chain_id = stage.ground.config.addresses.chain_id
    output = str(envelope.input["input"])[::-1]
    body = ResultBody(bytes.fromhex(job[2:]), output, {"output_tokens": len(output)})
    sealed = seal_result(envelope.result_key, chain_id, provider.registry, body.job_id, body.encode())
    settled = await provider.run(provider.settle(job, len(output), result=base64_of(sealed)))
    assert settled.status_code == 201, settled.text
    return envelope


async def _opened(stage: Stage, provider: Party, account: DevWallet, job: str) -> bytes:
    """Decrypt with the provider's key, or for an open bid with the key that the escrow releases."""
    row = (await stage.http.get(f"/evm/jobs/{job}")).json()
    async with httpx.AsyncClient(trust_env=False) as gateway:
        container = (await gateway.get(f"{stage.world.pins.gateway}/ipfs/{row['task_cid']}")).content
    if row["designated"] != "0":
        chain_id, owner = stage.ground.config.addresses.chain_id, bytes.fromhex(row["owner"][2:])
        return open_with_secret(SecretKey(account.box_secret), chain_id, provider.registry, owner, container)
    response = SecretKey.generate()
    released = await stage.http.post("/release", json=provider.release(job, container, response.public))
    assert released.status_code == 200, released.text
    dek = open_sealed(response, base64.b64decode(released.json()["dek_sealed"]))
    assert dek is not None
    return open_with_data_key(dek, container)


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
