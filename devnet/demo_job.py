"""One sealed job from end to end, with nothing but the specification's routes and `common`.

A client seals a payload, asks for a quote, signs order and payment, submits; the world's own svcd claims, opens, runs
(its demo backend gives back what it was given), seals the result, settles; the client reads the result from the gateway
and opens it. Once with the job designated to that provider, once as an open bid, sealed to the escrow.
"""

import json
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import anyio
import attrs
import httpx

from common.address_book import AddressBook
from common.box import PublicKey, SecretKey
from common.container import commit, seal
from common.domains import Domains
from common.envelope import Envelope, ResultBody
from common.messages.jobs import Order
from common.messages.payments import job_payment
from common.quotes import job_id
from common.result import open_result
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
_LOOK_SECONDS: Final = 0.1

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


@attrs.frozen
class Recipient:
    """Whom a payload is sealed to, and whom its job is designated to (0: nobody)."""

    key: PublicKey
    designated: int


async def run_jobs(up: Devnet, say: Callable[[str], None]) -> None:
    """Says each step; raises `Trouble` naming the request that was answered otherwise than it should."""
    world = up.world
    book = AddressBook.parse(json.dumps(world.market.address_book).encode())
    client, provider = world.cast.with_role("client")[0], world.cast.demo_provider
    async with httpx.AsyncClient(base_url=up.coordinator.base_url, trust_env=False, timeout=_SECONDS) as http:
        stage = Stage(http, world.pins.gateway, Domains.of(book), book.job_registry, book.chain_id)
        escrow = bytes.fromhex((await stage.ask(200, "GET", "/key"))["escrow_public_key"])
        designated = Recipient(PublicKey(provider.box_key), world.market.provider_ids[provider.address])
        for what, recipient in (("designated job", designated), ("open job", Recipient(PublicKey(escrow), 0))):
            await _run_one(stage, client, recipient, what, say)


async def _run_one(stage: Stage, client: Account, recipient: Recipient, what: str, say: Callable[[str], None]) -> None:
    result_key = SecretKey(secrets.token_bytes(32))
    job, amount = await _buy(stage, client, recipient, result_key.public)
    say(f"client: {what} {job} is posted; {_dollars(amount)} authorised")
    done = await _ended(stage, job)
    sealed = await stage.http.get(f"{stage.gateway}/ipfs/{done['result_cid']}")
    if done["status"] != "completed":
        raise Trouble(f"the {what} ended as {done['status']}")
    opened = open_result(result_key, stage.chain_id, stage.registry, bytes.fromhex(job[2:]), sealed.content)
    body = ResultBody.parse(opened)
    if body.output != _INPUT:
        raise Trouble(f"the {what} came back with {body.output!r}")
    say(f"provider: claimed, opened, ran, settled; client: {done['status']}, result {body.output!r}")


async def _ended(stage: Stage, job: str) -> Json:
    with anyio.fail_after(_SECONDS):
        while True:
            row = await stage.ask(200, "GET", f"/v1/jobs/{job}")
            if row["status"] not in ("queued", "in_progress"):
                return row
            await anyio.sleep(_LOOK_SECONDS)


async def _buy(stage: Stage, account: Account, recipient: Recipient, result_key: PublicKey) -> tuple[str, int]:
    wallet = _wallet(account)
    envelope = Envelope(wallet.address, MODELS[0].name, dict(_INPUT), result_key)
    container = seal(recipient.key, stage.chain_id, stage.registry, wallet.address, envelope.encode())
    order = Order(
        commit(container).c,
        MODELS[0].model_id,
        _SLA,
        rate_in=1_000_000,
        rate_out=2_000_000,
        units_in=1_000,
        units_out=1_000,
        designated=recipient.designated,
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


def _wallet(account: Account) -> Wallet:
    return Wallet(bytes.fromhex(account.private_key[2:]))


def _dollars(amount: int) -> str:
    return f"{amount / 10**6:,.6f} Dev Dollar"
