"""One sealed job from end to end, with nothing but the specification's routes and `common`.

A client seals a payload to a provider, asks for a quote, signs order and payment, submits; the provider signs in,
claims, opens, runs (it turns the text round), seals the result, settles; the client reads the result from the
gateway and opens it.
"""

import json
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import attrs
import httpx

from common.address_book import AddressBook
from common.box import PublicKey, SecretKey
from common.container import commit, open_with_secret, seal
from common.domains import Domains
from common.envelope import Envelope, ResultBody
from common.messages.jobs import Claim, Order, Settle
from common.messages.payments import job_payment
from common.messages.sessions import SvcSession
from common.quotes import job_id
from common.result import open_result, seal_result
from common.scalars import base64_of, hex_of
from common.secp256k1 import Wallet
from devnet.accounts import Wallet as Account
from devnet.catalogue import MODELS
from devnet.trouble import Trouble
from devnet.world import Devnet

_INPUT: Final = {"input": "sealed jobs"}
_SLA: Final = 3600
_LIFE: Final = 7200
_SECONDS: Final = 30.0

Json = dict[str, Any]


@attrs.frozen
class Stage:
    """What both sides know: the coordinator, the gateway, the deployment."""

    http: httpx.AsyncClient
    gateway: str
    domains: Domains
    registry: bytes
    chain_id: int

    async def ask(self, expected: int, method: str, path: str, **request: Any) -> Json:
        response = await self.http.request(method, path, **request)
        if response.status_code != expected:
            raise Trouble(f"{method} {path} answered {response.status_code} instead of {expected}: {response.text}")
        answer: Json = response.json()
        return answer


async def run_one_job(up: Devnet, say: Callable[[str], None]) -> None:
    """Says each step; raises `Trouble` naming the request that was answered otherwise than it should."""
    world = up.world
    book = AddressBook.parse(json.dumps(world.market.address_book).encode())
    client, provider = world.cast.with_role("client")[0], world.cast.with_role("provider")[0]
    provider_id = world.market.provider_ids[provider.address]
    async with httpx.AsyncClient(base_url=up.coordinator.base_url, trust_env=False, timeout=_SECONDS) as http:
        stage = Stage(http, world.pins.gateway, Domains.of(book), book.job_registry, book.chain_id)
        result_key = SecretKey(secrets.token_bytes(32))
        job, amount = await _buy(stage, client, provider, provider_id, result_key.public)
        say(f"client: job {job} is posted; {_dollars(amount)} authorised")
        await _provide(stage, provider, job)
        done = await stage.ask(200, "GET", f"/v1/jobs/{job}")
        sealed = await http.get(f"{stage.gateway}/ipfs/{done['result_cid']}")
        opened = open_result(result_key, stage.chain_id, stage.registry, bytes.fromhex(job[2:]), sealed.content)
        body = ResultBody.parse(opened)
        if done["status"] != "completed" or body.output != _work(_INPUT):
            raise Trouble(f"the job ended as {done['status']} with {body.output!r}")
        say(f"provider: claimed, opened, ran, settled; client: {done['status']}, result {body.output!r}")


async def _buy(
    stage: Stage, account: Account, provider: Account, provider_id: int, result_key: PublicKey
) -> tuple[str, int]:
    wallet = _wallet(account)
    envelope = Envelope(wallet.address, MODELS[0].name, dict(_INPUT), result_key)
    container = seal(PublicKey(provider.box_key), stage.chain_id, stage.registry, wallet.address, envelope.encode())
    order = Order(
        commit(container).c,
        MODELS[0].model_id,
        _SLA,
        rate_in=1_000_000,
        rate_out=2_000_000,
        units_in=1_000,
        units_out=1_000,
        designated=provider_id,
        expires_at=int(time.time()) + _LIFE,
    )
    job = job_id(wallet.address, order.c)
    body: Json = {
        "c": hex_of(order.c),
        "model_id": order.model_id,
        "sla_secs": order.sla_secs,
        "rate_in": str(order.rate_in),
        "rate_out": str(order.rate_out),
        "units_in": order.units_in,
        "units_out": order.units_out,
        "designated": order.designated,
        "expires_at": order.expires_at,
        "owner": hex_of(wallet.address),
        "job_id": hex_of(job),
        "signature": hex_of(wallet.sign(stage.domains.jobs.digest(order))),
    }
    amount = int((await stage.ask(402, "POST", "/v1/jobs", json=body))["quote"]["amount"])
    payment = job_payment(wallet.address, stage.registry, amount, order.expires_at, job)
    body |= {
        "amount": str(amount),
        "auth_sig": hex_of(wallet.sign(stage.domains.token.digest(payment))),
        "container": base64_of(container),
    }
    return (await stage.ask(201, "POST", "/v1/jobs", json=body))["job_id"], amount


async def _provide(stage: Stage, account: Account, job: str) -> None:
    wallet, raw = _wallet(account), bytes.fromhex(job[2:])
    nonce = (await stage.ask(200, "GET", "/auth/nonce", params={"address": hex_of(wallet.address)}))["nonce"]
    signature = wallet.sign(stage.domains.session.digest(SvcSession(wallet.address, nonce)))
    handshake = {
        "address": hex_of(wallet.address),
        "nonce": nonce,
        "signature": hex_of(signature),
        "role": "provider",
    }
    token = (await stage.ask(200, "POST", "/auth/session", json=handshake))["token"]
    headers = {"authorization": f"Bearer {token}"}

    now = int(time.time())
    signature = wallet.sign(stage.domains.jobs.digest(Claim(raw, now)))
    claim = {"op": "claim", "job_id": job, "issued_at": now, "signature": hex_of(signature)}
    await stage.ask(201, "POST", "/evm/ops", json=claim, headers=headers)

    row = await stage.ask(200, "GET", f"/evm/jobs/{job}")
    container = (await stage.http.get(f"{stage.gateway}/ipfs/{row['task_cid']}")).content
    owner = bytes.fromhex(row["owner"][2:])
    opened = open_with_secret(SecretKey(account.box_secret), stage.chain_id, stage.registry, owner, container)
    envelope = Envelope.parse(opened)
    output = _work(envelope.input)
    body = ResultBody(raw, output, {"output_tokens": len(output)})
    sealed = seal_result(envelope.result_key, stage.chain_id, stage.registry, raw, body.encode())

    now = int(time.time())
    signature = wallet.sign(stage.domains.jobs.digest(Settle(raw, len(output), now)))
    settle = {
        "op": "settle",
        "job_id": job,
        "completion_tok": len(output),
        "issued_at": now,
        "signature": hex_of(signature),
        "result": base64_of(sealed),
    }
    await stage.ask(201, "POST", "/evm/ops", json=settle, headers=headers)


def _work(model_input: Json) -> str:
    return str(model_input["input"])[::-1]


def _wallet(account: Account) -> Wallet:
    return Wallet(bytes.fromhex(account.private_key[2:]))


def _dollars(amount: int) -> str:
    return f"{amount / 10**6:,.6f} Dev Dollar"
