"""What a provider does for one job: claims it, opens it, turns the text round, settles."""

import httpx

from common.box import SecretKey
from common.container import open_with_secret
from common.envelope import Envelope, ResultBody
from common.result import seal_result
from common.scalars import base64_of
from devnet.accounts import Wallet as DevnetWallet
from tests.integration.coordinatord.api.party import Party
from tests.integration.coordinatord.api.stage import Stage


async def fulfil(stage: Stage, provider: Party, account: DevnetWallet, job: str) -> Envelope:
    """The envelope that the client sealed; the job is settled when this returns."""
    claimed = await provider.run(provider.claim(job))
    assert claimed.status_code == 201, claimed.text
    envelope = await _opened(stage, account, job)
    chain_id = stage.ground.config.addresses.chain_id
    output = str(envelope.input["input"])[::-1]
    body = ResultBody(bytes.fromhex(job[2:]), output, {"output_tokens": len(output)})
    sealed = seal_result(envelope.result_key, chain_id, provider.registry, body.job_id, body.encode())
    settled = await provider.run(provider.settle(job, len(output), result=base64_of(sealed)))
    assert settled.status_code == 201, settled.text
    return envelope


async def _opened(stage: Stage, account: DevnetWallet, job: str) -> Envelope:
    addresses = stage.ground.config.addresses
    row = (await stage.http.get(f"/evm/jobs/{job}")).json()
    async with httpx.AsyncClient(trust_env=False) as gateway:
        container = (await gateway.get(f"{stage.world.pins.gateway}/ipfs/{row['task_cid']}")).content
    owner = bytes.fromhex(row["owner"][2:])
    secret = SecretKey(account.box_secret)
    return Envelope.parse(open_with_secret(secret, addresses.chain_id, addresses.job_registry, owner, container))
