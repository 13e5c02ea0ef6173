"""Proves that each part of a local world works, by using it."""

import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import asyncpg
import attrs
import httpx
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from common import quotes
from common.cid import cid_of
from common.quotes import Terms
from devnet import ports
from devnet.anvil import Anvil
from devnet.catalogue import MODELS
from devnet.child import Program, running
from devnet.errors import DevnetError
from devnet.market import at, connected
from devnet.pins import PinStoreService
from devnet.postgres import Postgres
from devnet.world import Devnet, World
from svc.batches.results import BatchResult
from svc.client import Client
from svc.errors import SvcError
from svc.records import Deployment, Job, Quote
from svc.results import Result

# Jobs bought as a customer buys them, with the client: an open one, a designated one, and a batch.
#
# The world's own provider runs them; its demo backend gives back what it was given, so that what comes back is known.

_MODEL: Final = MODELS[0].name
_WINDOW: Final = "1h"
_LINES: Final = 20
_SECONDS: Final = 45.0  # for all that is bought
_LOOK_SECONDS: Final = 0.5

Say = Callable[[str], None]
Input = dict[str, Any]


async def buy(up: Devnet, say: Say) -> None:
    """Says each step and what it cost; raises `DevnetError` when a job ends otherwise than it should."""
    began = anyio.current_time()
    try:
        with anyio.fail_after(_SECONDS):
            async with _customer(up) as client:
                shop = Shop(client, await client.chain(), say)
                terms = await shop.open_job(_input("an open job: whoever claims it first"))
                await shop.designated_job(_input("a designated job: for one provider's eyes"))
                await shop.batch([_input(f"line {number} of a batch") for number in range(1, _LINES + 1)], terms)
    except SvcError as error:
        raise DevnetError(f"the client was refused: {error}") from error
    except TimeoutError:
        raise DevnetError(f"what the client bought had not all come after {_SECONDS:g} s") from None
    say(f"client: {_LINES + 2} jobs were bought and opened in {anyio.current_time() - began:.1f} s")


@attrs.frozen
class Shop:
    client: Client
    chain: Deployment
    say: Say

    async def open_job(self, model_input: Input) -> Terms:
        """At the lowest rates that are asked, for anybody to claim; the charges that it was quoted."""
        asks = await self.client.market.asks(model=MODELS[0].model_id, limit=None)
        rate_in, rate_out = max(ask.rate_in for ask in asks), max(ask.rate_out for ask in asks)
        key = (await self.client.escrow()).escrow_public_key
        self.say(f"client: offers {rate_in}/{rate_out} to whoever claims first; seals to the escrow {key[:16]}…")
        return await self._one("open job", model_input, {"rate_in": rate_in, "rate_out": rate_out})

    async def designated_job(self, model_input: Input) -> Terms:
        """At the ask of the best live provider, sealed to that provider alone."""
        best = (await self.client.probe(_MODEL, model_input, window=_WINDOW))[0]
        self.say(f"client: the market names provider {best.provider_id} at {best.rate_in}/{best.rate_out}; seals to it")
        return await self._one("designated job", model_input, {"provider": best.provider_id})

    async def batch(self, inputs: list[Input], terms: Terms) -> None:
        """Planned over the providers, posted as one file, opened line by line."""
        lines = [
            {"custom_id": f"line {number}", "body": {"model": _MODEL, **each}} for number, each in enumerate(inputs, 1)
        ]
        for plan in await self.client.batches.plan(lines, window=_WINDOW):
            shares = ", ".join(
                f"provider {share.provider_id} {share.lines} at {share.rate_in}/{share.rate_out}"
                for share in plan.allocation
            )
            self.say(f"batch: {plan.lines} lines for {_MODEL} are planned: {shares}")
        prepared = await self.client.batches.prepare(lines, window=_WINDOW)
        batch = await self.client.batches.create(prepared)
        self.say(f"batch: {batch.id} is posted; {self._money(prepared.amount)} authorised")
        ended = await self.client.batches.wait(batch.id, every=_LOOK_SECONDS)
        total = opened = 0
        async for result in self.client.batches.results(ended, custom_ids=prepared.custom_ids):
            line = _settled(result)
            self._require(line.job, line.output, inputs[opened])
            cost = self._cost(line.job, terms)
            self.say(f"batch: {result.custom_id} came back as {line.output['input']!r}; cost {self._money(cost)}")
            total, opened = total + cost, opened + 1
        if opened != len(inputs):
            raise DevnetError(f"the batch ended as {ended.status} with {opened} results")
        self.say(f"batch: {ended.status}; {opened} lines cost {self._money(total)}")

    async def _one(self, what: str, model_input: Input, terms: dict[str, Any]) -> Terms:
        prepared = await self.client.prepare(_MODEL, model_input, window=_WINDOW, **terms)
        quote = (await self.client.quote(prepared)).quote
        submitted = await self.client.submit(prepared, final=True)
        self.say(f"{what}: {submitted.job_id} is posted; {self._money(submitted.amount)} authorised")
        result = await self.client.open(await self.client.wait(submitted.job_id))
        self._require(result.job, result.output, model_input)
        charges = _charges(quote)
        cost = self._cost(result.job, charges)
        who, back = f"provider {result.job.svc.provider_id}", self._money(submitted.amount - cost)
        self.say(f"{what}: {who} claimed, ran and settled; opened {result.output['input']!r}")
        self.say(f"{what}: cost {self._money(cost)}; {back} came back")
        return charges

    def _cost(self, job: Job, charges: Terms) -> int:
        order = job.svc
        units = (order.rate_in, order.rate_out, order.units_in, order.units_out)
        shares = quotes.settlement(*units, charges, completion_tok=order.completion_tok)
        return shares.provider + shares.treasury

    def _money(self, amount: int) -> str:
        return f"{amount / 10**self.chain.decimals:,.6f} {self.chain.token_domain.name}"

    def _require(self, job: Job, output: object, expected: Input) -> None:
        if output != expected:
            raise DevnetError(f"job {job.id} came back with {output!r} instead of {expected!r}")


@asynccontextmanager
async def _customer(up: Devnet) -> AsyncIterator[Client]:
    """The first client of the cast; nothing of this process's environment plays a part."""
    url, gateway = up.coordinator.base_url, up.world.pins.gateway
    key = up.world.cast.with_role("client")[0].private_key
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=_SECONDS) as http,
        Client(url, http=http, wallet_key=key, gateways=gateway, environment={}) as client,
    ):
        yield client


def _input(text: str) -> Input:
    return {"input": text, "max_output_tokens": 64}


def _charges(quote: Quote) -> Terms:
    return Terms(fee_bps=quote.fee_bps, gas_fee=quote.gas_fee)


def _settled(line: BatchResult) -> Result:
    if line.result is None:
        raise DevnetError(f"{line.custom_id or line.id} of the batch ended without a result: {line.error}")
    return line.result


_BLOCK_SECONDS: Final = 0.1  # between looks for the next block
_BLOCK_WAIT_SECONDS: Final = 1.5  # a block by the usual clock comes within; for a slower one nobody waits
_CONTENT: Final = json.dumps({"written": datetime.now(UTC).isoformat()}).encode()


async def prove(up: Devnet, say: Callable[[str], None]) -> None:
    """Says what each part answered; raises `DevnetError` when one answers wrongly."""
    world = up.world
    say(await _chain(world.anvil))
    say(await _market(world))
    say(await _database(world.postgres))
    say(await _pin_store(world.pins))
    await buy(up, say)
    with tempfile.TemporaryDirectory() as folder:
        say(await _served(up, Path(folder)))


async def _served(up: Devnet, folder: Path) -> str:
    """One call of OpenAI's API, answered by `svc serve` from a sealed job."""
    port = ports.pick_free()
    url, client = f"http://{ports.LOOPBACK}:{port}/v1", up.world.cast.with_role("client")[0]
    environment = {
        **{"SVC_BASE_URL": up.coordinator.base_url, "SVC_PIN_GATEWAY": up.world.pins.gateway},
        **{"SVC_WALLET_KEY": client.private_key, "SVC_KNOWN_MARKETS": "", "SVC_CONFIG": ""},
    }
    line = (sys.executable, "-m", "svc", "serve", "--state", str(folder), "--port", str(port))
    program = Program("svc serve", line, folder / "serve.log", environment=environment, stop_seconds=10)
    message = {"role": "user", "content": "what any OpenAI client asks"}
    asked = {"model": _MODEL, "messages": [message]}
    async with running(program) as child, httpx.AsyncClient(trust_env=False, timeout=_SECONDS) as http:

        async def listens() -> bool:
            try:
                return (await http.get(f"{url}/models")).status_code == 401
            except httpx.TransportError:
                return False

        await child.wait_until(listens, seconds=30)
        key = (await anyio.Path(folder / "serve.key").read_text()).strip()
        headers = {"authorization": f"Bearer {key}"}
        answer = await http.post(f"{url}/chat/completions", json=asked, headers=headers)
    if answer.status_code != 200:
        raise DevnetError(f"svc serve answered {answer.status_code}: {answer.text}")
    told = answer.json()
    content = json.loads(told["choices"][0]["message"]["content"])["input"][0]["content"]
    if content != message["content"]:
        raise DevnetError(f"svc serve answered {content!r}")
    return f"serve: POST /v1/chat/completions came back as job {told['svc']['job_id']} with {content!r}"


async def _chain(anvil: Anvil) -> str:
    before = int(await anvil.call("eth_blockNumber"), 16)
    with anyio.move_on_after(_BLOCK_WAIT_SECONDS):
        while int(await anvil.call("eth_blockNumber"), 16) == before:  # noqa: ASYNC110 - over HTTP it does not tell
            await anyio.sleep(_BLOCK_SECONDS)
        return f"chain: block {before + 1} was mined on top of block {before}"
    await anvil.call("evm_mine")
    return f"chain: block {int(await anvil.call('eth_blockNumber'), 16)} was mined on demand"


async def _market(world: World) -> str:
    async with connected(world.anvil.rpc_url) as chain:
        providers = at(chain, "ProviderRegistry", world.market.providers).functions
        token = at(chain, "DevToken", world.market.token).functions
        listed = 0
        for provider_id in world.market.provider_ids.values():
            *_, is_listed, _, _, _, _, _ = await providers.provider(provider_id).call()
            listed += is_listed
        client = world.cast.with_role("client")[0].address
        balance = await token.balanceOf(client).call() / 10**world.market.token_decimals
    if listed != len(world.market.provider_ids) or not balance:
        raise DevnetError(f"the market is not as it was set up: {listed} providers listed, {balance} with {client}")
    return f"market: {listed} providers are listed; a client holds {balance:,.0f} {world.market.token_name}"


async def _database(postgres: Postgres) -> str:
    connection = await asyncpg.connect(postgres.url())
    try:
        await connection.execute("create temporary table visit (at timestamptz not null default now())")
        await connection.execute("insert into visit default values")
        rows, version = await connection.fetchrow(
            "select (select count(*) from visit), current_setting('server_version')"
        )
    finally:
        await connection.close()
    if rows != 1:
        raise DevnetError(f"the database holds {rows} rows where one was written")
    return f"database: PostgreSQL {version} took a row and gave it back"


async def _pin_store(pins: PinStoreService) -> str:
    cid = str(cid_of(_CONTENT))
    async with httpx.AsyncClient(trust_env=False) as client:
        stored = await client.send(_signed_put(pins, "demo.json", _CONTENT))
        fetched = await client.get(f"{pins.gateway}/ipfs/{cid}")
    if stored.headers.get("x-amz-meta-cid") != cid or fetched.content != _CONTENT:
        raise DevnetError(f"the pin store answered {stored.status_code} to the PUT, {fetched.status_code} to the GET")
    return f"pin store: {len(_CONTENT)} bytes were put, and read back at {fetched.url}"


def _signed_put(pins: PinStoreService, key: str, content: bytes) -> httpx.Request:
    url = f"{pins.endpoint}/{pins.bucket}/{key}"
    request = AWSRequest("PUT", url, {"host": urlsplit(url).netloc}, content)
    S3SigV4Auth(Credentials(pins.key, pins.secret), "s3", pins.region).add_auth(request)
    return httpx.Request("PUT", url, headers=dict(request.headers), content=content)
