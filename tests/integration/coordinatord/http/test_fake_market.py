"""Compare the in-memory market of svcd's tests with a real coordinator, through one conversation with both.

A provider sends both the same requests, from signing in to the ends of its jobs, including invalid ones. Each response
must have the same status, the same error, and the same members with values of the same type. Values that a provider
acts on must be equal.
"""

import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import attrs
import httpx
import pytest

from common.box import PublicKey, SecretKey
from common.scalars import base64_of
from common.secp256k1 import Wallet
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.stage import Stage
from tests.support.fakes.market import GATEWAY, URL, Market

MODEL, WINDOW = 1, 600
RESPONSE: Final = SecretKey(b"\x66" * 32)
# Members that a provider acts on.
TELLING: Final = frozenset({"state", "ended_because", "ok", "reason", "published", "object", "purpose", "status"})
Answer = Callable[[], Awaitable[httpx.Response]]


@attrs.frozen
class Side:
    """`post` posts a client's order for a container and returns the job's id. `escrow` holds the key for open bids."""

    provider: Party
    provider_id: int
    stranger: Wallet
    gateway: httpx.AsyncClient
    escrow: PublicKey
    post: Callable[[bytes, int], Awaitable[str]]
    heard: dict[str, object] = attrs.field(factory=dict)

    async def hear(self, what: str, answer: Answer, ready: Callable[[Any], bool] = lambda _: True) -> Any:
        """Return the response's body. A real index lags, so repeat the request until `ready`."""
        with anyio.fail_after(60):
            while (response := await answer()).status_code == 200 and not ready(response.json()):  # noqa: ASYNC110 - there is no event to wait for
                await anyio.sleep(0.05)
        body = response.json()
        retryable = response.headers.get("x-svc-retryable") if response.status_code >= 400 else None
        assert what not in self.heard
        self.heard[what] = (response.status_code, retryable, kind_of(body))
        return body

    async def get(self, what: str, path: str, ready: Callable[[Any], bool] = lambda _: True, **query: object) -> Any:
        params = {name: str(value) for name, value in query.items()}
        headers = self.provider.authorization if self.provider.token else {}
        return await self.hear(what, lambda: self.provider.http.get(path, params=params, headers=headers), ready)

    async def op(self, what: str, op: Body) -> Any:
        return await self.hear(what, lambda: self.provider.run(op))


def kind_of(value: object, name: str = "") -> object:
    """Return the type of a value that differs between markets. Of an error, return type and code."""
    if isinstance(value, dict):
        if isinstance(error := value.get("error"), dict):
            return {"type": error["type"], "code": error["code"]}
        return {key: "a schema" if key == "params_schema" else kind_of(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [kind_of(value[0])] if value else []
    if name in TELLING or value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return "a number"
    text = str(value)
    if re.fullmatch(r"0x([0-9a-f]{2})+", text):
        return f"{len(text) // 2 - 1} bytes"
    return "digits" if text.isdecimal() else "text"


def anothers(op: Body) -> Body:
    return op | {"signature": "0x" + "11" * 64 + "1b"}


# --- the conversation -------------------------------------------------------------------------------------


async def signing_in(side: Side) -> None:
    provider = side.provider
    await side.get("a nonce", "/auth/nonce", address=provider.address)
    body = await provider.session_body(role="provider")
    forged = body | {"signature": "0x" + side.stranger.sign(b"\x01" * 32).hex()}
    await side.hear("a session with a stranger's signature", lambda: provider.http.post("/auth/session", json=forged))
    await side.get("a poll without a session", "/evm/jobs", state="Open", model=MODEL, free=1)
    await side.op("an op without a session", provider.claim("0x" + "77" * 32))
    body = await provider.session_body(role="provider")
    session = await side.hear("a session", lambda: provider.http.post("/auth/session", json=body))
    provider.token = session["token"]


async def the_market(side: Side) -> None:
    await side.get("readiness", "/readyz")
    await side.get("the chain", "/evm/chain")
    await side.get("models", "/v1/models")
    await side.get("a page behind the last model", "/v1/models", offset=1000)
    await side.get("the provider", f"/evm/providers/{side.provider_id}", lambda row: row["listed"])
    await side.get("an unknown job", "/evm/jobs/0x" + "77" * 32)


async def asking(side: Side) -> None:
    provider, quote = side.provider, (MODEL, WINDOW, 100, 200)
    now = int(time.time())
    asks = provider.asks(side.provider_id, quote, signed_at=now)
    await side.hear("asks with another's signature", lambda: provider.publish(anothers(asks)))
    ahead = provider.asks(side.provider_id, quote, signed_at=now + 90_000)
    await side.hear("asks of tomorrow", lambda: provider.publish(ahead))
    await side.hear("asks", lambda: provider.publish(asks))
    await side.hear("the same asks again", lambda: provider.publish(asks))
    await side.get("the book's asks", "/evm/asks", lambda told: told["asks"])
    await side.get("a page behind the last ask", "/evm/asks", offset=1000)
    await side.get("floors", "/evm/asks/floors", lambda told: told["floors"])
    demand = {"model_id": MODEL, "sla_secs": WINDOW, "units_in": 1, "units_out": 1, "designated": side.provider_id}
    await side.hear("candidates, before it polls", lambda: provider.http.post("/v1/jobs", json=demand))


async def settling(side: Side) -> None:
    """Follow a designated job from the poll to its result."""
    provider = side.provider
    container = provider.container()
    job = await side.post(container, side.provider_id)
    await side.get("the open job", f"/evm/jobs/{job}", lambda row: row["state"] == 0)
    query = {"state": "Open", "model": MODEL, "free": 1}
    polled = await side.get("a poll", "/evm/jobs", lambda told: told["jobs"], **query)
    content = await side.gateway.get(f"/ipfs/{polled['jobs'][0]['task_cid']}")
    assert (content.status_code, content.content) == (200, container)
    await side.op("a claim with another's signature", anothers(provider.claim(job)))
    await side.op("a settle before the claim", provider.settle(job, result=base64_of(b"early")))
    await side.op("a fail before the claim", provider.fail(job))
    await side.op("a claim", provider.claim(job))
    await side.op("a claim of a claimed job", provider.claim(job, int(time.time()) - 5))
    await side.get("the claimed job", f"/evm/jobs/{job}", lambda row: row["state"] == 1)
    mine = {"state": "Claimed", "provider": side.provider_id}
    await side.get("claimed jobs", "/evm/jobs", lambda told: told["jobs"], **mine)
    await side.get("a page behind the last claimed job", "/evm/jobs", offset=1000, **mine)
    await side.op("a settle with another's signature", anothers(provider.settle(job, result=base64_of(b"sealed"))))
    await side.op("a settle by an unknown upload", provider.settle(job, result_cid="bafkunknown"))
    upload = await side.hear("a result's upload", lambda: provider.upload("result", b"sealed result"))
    await side.op("a settle", provider.settle(job, result_cid=upload["svc"]["cid"]))
    await side.op("a settle of a settled job", provider.settle(job, result=base64_of(b"late"), completion_tok=9))
    await side.op("a fail of a settled job", provider.fail(job))
    await side.get("the settled job", f"/evm/jobs/{job}", lambda row: row["state"] == 2)
    settled = {"state": "Settled", "provider": side.provider_id}
    await side.get("settled jobs", "/evm/jobs", lambda told: told["jobs"], **settled)


async def failing(side: Side) -> None:
    """An open job that the provider fails although the escrow has released its key."""
    provider = side.provider
    container = provider.container(to=side.escrow)
    elsewhere = provider.container(to=RESPONSE.public)

    def released(job: str, shown: bytes, **changed: object) -> Answer:
        body = provider.release(job, shown, RESPONSE.public) | changed
        return lambda: provider.http.post("/release", json=body)

    job = await side.post(container, 0)
    unopened = await side.post(elsewhere, 0)
    await side.hear("a release of an unknown job", released("0x" + "77" * 32, container))
    await side.hear("a release before the claim", released(job, container))
    await side.op("a claim of the open bid", provider.claim(job))
    await side.op("a claim of another", provider.claim(unopened))
    stranger = attrs.evolve(provider, wallet=side.stranger).release(job, container, RESPONSE.public)
    await side.hear("a release to a stranger", lambda: provider.http.post("/release", json=stranger))
    await side.hear("a release of another container", released(job, elsewhere))
    await side.hear("a release of what is sealed to another", released(unopened, elsewhere))
    await side.hear("a release", released(job, container))
    await side.op("a fail with another's signature", anothers(provider.fail(job)))
    await side.op("a fail", provider.fail(job))
    await side.op("a fail of another", provider.fail(unopened))
    await side.op("a settle of a failed job", provider.settle(job, result=base64_of(b"late")))
    await side.hear("a release after the end", released(job, container))
    await side.get("the failed job", f"/evm/jobs/{job}", lambda row: row["state"] == 3)
    failed = {"state": "Cancelled", "provider": side.provider_id}
    await side.get("failed jobs", "/evm/jobs", lambda told: told["jobs"], **failed)


async def changing(side: Side) -> None:
    provider = side.provider
    unknown = "0x" + secrets.token_hex(32)
    await side.op("a claim of an unknown job", provider.claim(unknown))
    await side.op("a settle of an unknown job", provider.settle(unknown, result=base64_of(b"sealed")))
    await side.op("a fail of an unknown job", provider.fail(unknown))
    identity = provider.set_identity(provider.box_key, b"evidence")
    await side.op("an identity with another's signature", anothers(identity))
    await side.op("an identity", identity)
    capacity = provider.request_capacity(64)
    await side.op("a capacity with another's signature", anothers(capacity))
    await side.op("a capacity", capacity)


async def conversation(side: Side) -> dict[str, object]:
    for part in (signing_in, the_market, asking, settling, failing, changing):
        await part(side)
    return side.heard


# --- the two markets --------------------------------------------------------------------------------------


@pytest.fixture
def stage_settings() -> dict[str, object]:
    return {"ESCROW_MODE": "static", "OPERATOR_KEY": "0x" + "17" * 32}


async def of_the_coordinator(stage: Stage, client: Party, provider: Party) -> dict[str, object]:
    async def post(container: bytes, designated: int) -> str:
        return str((await client.post(container=container, designated=designated, sla_secs=WINDOW))["job_id"])

    escrow = PublicKey(bytes.fromhex((await stage.http.get("/key")).json()["escrow_public_key"]))
    provider.token = ""
    async with httpx.AsyncClient(base_url=stage.world.pins.gateway, trust_env=False) as gateway:
        provider_id = 1
        side = Side(provider, provider_id, client.wallet, gateway, escrow, post)
        return await conversation(side)


async def of_the_fake() -> dict[str, object]:
    market = Market(time.time, chain_minds_time=True, gateway=None)  # the coordinator's settings name none either

    async def post(container: bytes, designated: int) -> str:
        return market.post(container, designated=str(designated))

    async with httpx.AsyncClient(transport=market.transport, base_url=URL) as http:
        book = market.domains
        provider = Party(market.provider, book, b"\x01" * 20, http, market.box.public.raw)
        async with httpx.AsyncClient(transport=market.transport, base_url=GATEWAY) as gateway:
            side = Side(provider, market.provider_id, market.owner, gateway, market.escrow.public, post)
            return await conversation(side)


async def test_the_market_in_memory_answers_as_a_coordinator_does(stage: Stage, client: Party, provider: Party) -> None:
    real = await of_the_coordinator(stage, client, provider)
    fake = await of_the_fake()
    assert fake.keys() == real.keys()
    differing = {what: {"real": real[what], "fake": fake[what]} for what in real if real[what] != fake[what]}
    assert differing == {}
