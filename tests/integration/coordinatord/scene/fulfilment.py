"""A provider's work for one job: claim it, decrypt it, reverse the text, settle."""

import base64

import httpx

from common.box import SecretKey, open_sealed
from common.container import open_with_data_key, open_with_secret
from common.envelope import Envelope, ResultBody
from common.scalars import base64_of
from common.sealed_result import seal_result
from devnet.accounts import DevWallet
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage


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
