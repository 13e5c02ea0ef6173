"""Proves that each part of a local world works, by using it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import anyio
import asyncpg
import httpx
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from common.cid import cid_of
from devnet.anvil import Anvil
from devnet.contracts import at, connected
from devnet.demo_jobs import buy
from devnet.pins import PinStore
from devnet.postgres import Postgres
from devnet.trouble import Trouble
from devnet.world import Devnet, World

_BLOCK_SECONDS: Final = 0.1  # between looks for the next block
_BLOCK_WAIT_SECONDS: Final = 1.5  # a block by the usual clock comes within; for a slower one nobody waits
_CONTENT: Final = json.dumps({"written": datetime.now(UTC).isoformat()}).encode()


async def prove(up: Devnet, say: Callable[[str], None]) -> None:
    """Says what each part answered; raises `Trouble` when one answers wrongly."""
    world = up.world
    say(await _chain(world.anvil))
    say(await _market(world))
    say(await _database(world.postgres))
    say(await _pin_store(world.pins))
    await buy(up, say)


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
        raise Trouble(f"the market is not as it was set up: {listed} providers listed, {balance} with {client}")
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
        raise Trouble(f"the database holds {rows} rows where one was written")
    return f"database: PostgreSQL {version} took a row and gave it back"


async def _pin_store(pins: PinStore) -> str:
    cid = str(cid_of(_CONTENT))
    async with httpx.AsyncClient(trust_env=False) as client:
        stored = await client.send(_signed_put(pins, "demo.json", _CONTENT))
        fetched = await client.get(f"{pins.gateway}/ipfs/{cid}")
    if stored.headers.get("x-amz-meta-cid") != cid or fetched.content != _CONTENT:
        raise Trouble(f"the pin store answered {stored.status_code} to the PUT, {fetched.status_code} to the GET")
    return f"pin store: {len(_CONTENT)} bytes were put, and read back at {fetched.url}"


def _signed_put(pins: PinStore, key: str, content: bytes) -> httpx.Request:
    url = f"{pins.endpoint}/{pins.bucket}/{key}"
    request = AWSRequest("PUT", url, {"host": urlsplit(url).netloc}, content)
    S3SigV4Auth(Credentials(pins.key, pins.secret), "s3", pins.region).add_auth(request)
    return httpx.Request("PUT", url, headers=dict(request.headers), content=content)
