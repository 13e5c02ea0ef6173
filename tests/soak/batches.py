"""A whole coordinator killed again and again inside one batch; then I6, and I1–I5 beside it.

    python -m tests.soak.batches [--lines 50000] [--kills 10]

Exits with 1 when something is broken.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs
import httpx

from common.address_book import AddressBook
from common.domains import Domains
from coordinatord import app
from coordinatord.chain.job_registry import JobRegistry
from coordinatord.chain.rpc import open_rpc
from coordinatord.config import read_config
from devnet import accounts
from devnet.anvil import running_anvil
from devnet.app import deployed_market
from devnet.pins import running_pin_store
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from devnet.world import World
from tests.bench.relaying import awake, rooms
from tests.fakes.submissions import Submitter, jsonl
from tests.integration.coordinatord.api.party import Party, wallet_of
from tests.integration.coordinatord.api.running import running
from tests.integration.coordinatord.api.stage import environment
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.invariants.batches import broken_batches

_BAD_EVERY: Final = 10  # every so many lines one is no submission
_PATIENCE: Final = 3600.0  # seconds for each stretch between two kills


@attrs.frozen
class Scene:
    world: World
    database_url: str
    settings: Mapping[str, str]
    book: AddressBook

    async def owner(self, base_url: str, http: httpx.AsyncClient) -> tuple[Party, Submitter]:
        wallet, book = self.world.cast.with_role("client")[0], self.book
        owner = Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)
        http.base_url = httpx.URL(base_url)
        await owner.sign_in()
        async with open_rpc(self.world.anvil.rpc_url) as rpc:
            terms = await JobRegistry(rpc, book.job_registry).fees()
        return owner, Submitter(owner.wallet, owner.domains, book.chain_id, book.job_registry, terms, owner.box_key)

    async def until(self, query: str, *arguments: object) -> None:
        """Until the query answers true."""
        connection = await asyncpg.connect(self.database_url)
        try:
            with anyio.fail_after(_PATIENCE):
                while not await connection.fetchval(query, *arguments):  # noqa: ASYNC110 - the event is elsewhere
                    await anyio.sleep(0.01)
        finally:
            await connection.close()


async def killed_batch(scene: Scene, lines: int, kills: int) -> list[str]:
    """What is broken afterwards, in words."""
    posted = lines - len(range(0, lines, _BAD_EVERY))
    async with httpx.AsyncClient(trust_env=False, timeout=300) as http:
        async with running(dict(scene.settings), pick_free(), pick_free()) as first:
            owner, submitter = await scene.owner(first.base_url, http)
            content = jsonl(b"no json" if n % _BAD_EVERY == 0 else submitter.line() for n in range(lines))
            uploaded = await owner.upload("batch", content)
            uploaded.raise_for_status()
            body = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
            created = await http.post("/v1/batches", json=body, headers=owner.authorization)
            created.raise_for_status()
        # Leaving the block above was the first kill.
        for kill in range(1, kills):
            async with running(dict(scene.settings), pick_free(), pick_free()):
                recorded = kill * lines // kills
                await scene.until("select not exists (select from batch_work where lines_done <= $1)", recorded)
            print(f"killed {kill + 1} times, {recorded} lines recorded", file=sys.stderr)
        async with running(dict(scene.settings), pick_free(), pick_free()):
            await scene.until("select count(*) = $1 from relays where state = 'mined'", posted)
            await scene.until("select not exists (select from relays where state in ('queued', 'signed'))")
            connection = await asyncpg.connect(scene.database_url)
            await connection.execute("update batches set expires_at = clock_timestamp()")
            await connection.close()
            await scene.until("select expired_at is not null from batches")
            return await _broken(scene)


async def _broken(scene: Scene) -> list[str]:
    async with AsyncExitStack() as stack:
        ground = await app.open_ground(read_config(scene.settings), stack)
        found = await broken_batches(ground.database, ground.pins)
        rows = await ground.database.pool.fetch("select job_id from batch_lines where relay_id is not null")
    promised = {row["job_id"] for row in rows}
    return found + await all_violations(scene.database_url, scene.world.anvil.rpc_url, scene.book, promised=promised)


async def run(lines: int, kills: int) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        directory = rooms(Path(name))
        async with (
            running_anvil(pick_free(), directory / "anvil", directory) as anvil,
            running_postgres(pick_free(), directory / "postgres", directory) as postgres,
            running_pin_store(pick_free(), directory / "pins", directory) as pins,
            awake(anvil),
        ):
            cast = accounts.derive()
            market = await deployed_market(anvil, cast)
            await postgres.execute("create database soak")
            url = postgres.url("soak")
            world = World(anvil, pins, postgres, cast, market)
            settings = environment(world, url, LOG_LEVEL="warning", RELAY_COALESCE_MAX=64)
            book = AddressBook.parse(json.dumps(market.address_book).encode())
            return await killed_batch(Scene(world, url, settings, book), lines, kills)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.batches")
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=10)
    chosen = parser.parse_args()
    broken = anyio.run(run, chosen.lines, chosen.kills, backend_options={"use_uvloop": True})
    for what in broken:
        print(what, file=sys.stderr)
    print(f"{chosen.lines} lines, {chosen.kills} kills: {'broken' if broken else 'all holds'}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
