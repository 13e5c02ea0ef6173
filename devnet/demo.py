"""Use each service of a running devnet once, as a demo."""

import json
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import asyncpg
import httpx
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from common.cid import cid_of
from devnet import ports
from devnet.anvil import Anvil
from devnet.child import Program, run_program
from devnet.contracts import connect_to_chain, contract_at
from devnet.errors import DevnetError
from devnet.pins import PinStoreService
from devnet.postgres import Postgres
from devnet.purchases import DEMO_TIMEOUT_S, MODEL_NAME, buy_all
from devnet.world import Devnet, World

_BLOCK_POLL_INTERVAL_S: Final = 0.1
_BLOCK_TIMEOUT_S: Final = 1.5  # enough at the default block time; if no block comes, the demo mines one
_PIN_CONTENT: Final = json.dumps({"written": datetime.now(UTC).isoformat()}).encode()


async def use_each_service(devnet: Devnet, print_line: Callable[[str], None]) -> None:
    """Use each service and print its response. Raise `DevnetError` for a wrong response."""
    world = devnet.world
    print_line(await _use_chain(world.anvil))
    print_line(await _use_market(world))
    print_line(await _use_database(world.postgres))
    print_line(await _use_pin_store(world.pins))
    await buy_all(devnet, print_line)
    with tempfile.TemporaryDirectory() as folder:
        print_line(await _use_local_server(devnet, Path(folder)))


async def _use_local_server(devnet: Devnet, folder: Path) -> str:
    """Send a chat request to `svc serve`, which buys a sealed job and returns its result."""
    port = ports.pick_free()
    url, client = f"http://{ports.LOOPBACK}:{port}/v1", devnet.world.wallets.with_role("client")[0]
    environment = {
        **{"SVC_BASE_URL": devnet.coordinator.base_url, "SVC_PIN_GATEWAY": devnet.world.pins.gateway},
        **{"SVC_WALLET_KEY": client.private_key, "SVC_KNOWN_MARKETS": "", "SVC_CONFIG": ""},
    }
    line = (sys.executable, "-m", "svc", "serve", "--state", str(folder), "--port", str(port))
    program = Program("svc serve", line, folder / "serve.log", environment=environment, stop_seconds=10)
    question = {"role": "user", "content": "What is the capital of Japan?"}
    body = {"model": MODEL_NAME, "messages": [question], "max_completion_tokens": 32}
    async with run_program(program) as child, httpx.AsyncClient(trust_env=False, timeout=DEMO_TIMEOUT_S) as http:

        async def listens() -> bool:
            try:
                return (await http.get(f"{url}/models")).status_code == 401
            except httpx.TransportError:
                return False

        await child.wait_until(listens, seconds=30)
        key = (await anyio.Path(folder / "serve.key").read_text()).strip()
        headers = {"authorization": f"Bearer {key}"}
        answer = await http.post(f"{url}/chat/completions", json=body, headers=headers)
    if answer.status_code != 200:
        raise DevnetError(f"svc serve answered with status {answer.status_code}: {answer.text}")
    completion = answer.json()
    content = completion["choices"][0]["message"]["content"].strip()
    if not content:
        raise DevnetError(f"svc serve returned an empty answer: {answer.text}")
    return (
        f"serve: an OpenAI client asked {question['content']!r}; job {completion['svc']['job_id']} answered {content!r}"
    )


async def _use_chain(anvil: Anvil) -> str:
    before = int(await anvil.call("eth_blockNumber"), 16)
    with anyio.move_on_after(_BLOCK_TIMEOUT_S):
        while int(await anvil.call("eth_blockNumber"), 16) == before:  # noqa: ASYNC110 - JSON-RPC over HTTP has no notifications
            await anyio.sleep(_BLOCK_POLL_INTERVAL_S)
        return f"chain: block {before + 1} was mined on top of block {before}"
    await anvil.call("evm_mine")
    return f"chain: block {int(await anvil.call('eth_blockNumber'), 16)} was mined on demand"


async def _use_market(world: World) -> str:
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        providers = contract_at(chain, "ProviderRegistry", world.market.providers).functions
        token = contract_at(chain, "DevToken", world.market.token).functions
        listed = 0
        for provider_id in world.market.provider_ids.values():
            *_, is_listed, _, _, _, _, _ = await providers.provider(provider_id).call()
            listed += is_listed
        client = world.wallets.with_role("client")[0].address
        balance = await token.balanceOf(client).call() / 10**world.market.token_decimals
    if listed != len(world.market.provider_ids) or not balance:
        raise DevnetError(f"unexpected market state: {listed} providers are listed, and {client} holds {balance}")
    return f"market: {listed} providers are listed; a client holds {balance:,.0f} {world.market.token_name}"


async def _use_database(postgres: Postgres) -> str:
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
        raise DevnetError(f"the database returned {rows} rows; expected 1")
    return f"database: PostgreSQL {version} stored a row and returned it"


async def _use_pin_store(pins: PinStoreService) -> str:
    cid = str(cid_of(_PIN_CONTENT))
    async with httpx.AsyncClient(trust_env=False) as client:
        stored = await client.send(_signed_put(pins, f"ipfs/{cid}", _PIN_CONTENT))
        fetched = await client.get(f"{pins.gateway}/ipfs/{cid}")
    if fetched.content != _PIN_CONTENT:
        raise DevnetError(
            f"the gateway did not return the stored bytes: status {stored.status_code} for the PUT to the pin store, "
            f"{fetched.status_code} for the GET from the gateway"
        )
    return f"pin store: {len(_PIN_CONTENT)} bytes were stored, and fetched from {fetched.url}"


def _signed_put(pins: PinStoreService, key: str, content: bytes) -> httpx.Request:
    url = f"{pins.endpoint}/{pins.bucket}/{key}"
    request = AWSRequest("PUT", url, {"host": urlsplit(url).netloc}, content)
    S3SigV4Auth(Credentials(pins.key, pins.secret), "s3", pins.region).add_auth(request)
    return httpx.Request("PUT", url, headers=dict(request.headers), content=content)
