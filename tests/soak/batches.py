"""Kill a complete coordinator repeatedly inside one batch. Then check I6, and also I1–I5.

    python -m tests.soak.batches [--lines 50000] [--kills 10] [--seed 1]

Exits with 1 when a promise is broken.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs
import httpx

from common.address_book import AddressBook
from common.domains import Domains
from common.scalars import hex_of
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.rpc.client import open_rpc
from coordinatord.run.config import read_config
from coordinatord.run.dependencies import open_dependencies
from devnet import accounts
from devnet.anvil import running_anvil
from devnet.app import deploy_market
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import environment
from tests.support.cid_store import running_cid_store
from tests.support.fakes.budgets import UNLIMITED
from tests.support.fakes.submissions import Submitter, jsonl
from tests.support.invariants.batches import broken_batches
from tests.support.services import awake, rooms

_BAD_EVERY: Final = 10  # one line in this many is invalid
_SETTLED: Final = 25
_PROGRESS_TIMEOUT_S: Final = 3600.0  # between two kills


@attrs.frozen
class Scene:
    world: World
    database_url: str
    settings: Mapping[str, str]
    book: AddressBook

    async def owner(self, base_url: str, http: httpx.AsyncClient) -> tuple[Party, Submitter]:
        wallet, book = self.world.wallets.with_role("client")[0], self.book
        owner = Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)
        http.base_url = httpx.URL(base_url)
        await owner.sign_in()
        async with open_rpc(self.world.anvil.rpc_url) as rpc:
            terms = await JobRegistry(rpc, book.job_registry).read_fees()
        return owner, Submitter(owner.wallet, owner.domains, book.chain_id, book.job_registry, terms, owner.box_key)

    def life(self) -> AbstractAsyncContextManager[Coordinator]:
        """Run a coordinator, and kill it when the block ends."""
        return running(dict(self.settings), pick_free(), pick_free())

    async def settle_some(self, base_url: str, http: httpx.AsyncClient) -> None:
        """Settle a few of the batch's jobs, so that both of its files have lines."""
        wallet = self.world.wallets.with_role("provider")[0]
        provider = Party(wallet_of(wallet), Domains.of(self.book), self.book.job_registry, http, wallet.box_key)
        http.base_url = httpx.URL(base_url)
        await provider.sign_in("provider")
        connection = await asyncpg.connect(self.database_url)
        rows = await connection.fetch(
            "select job_id from batch_lines where relay_id is not null order by line limit $1", _SETTLED
        )
        await connection.close()
        for row in rows:
            job = hex_of(row["job_id"])
            for op in (provider.claim(job), provider.settle(job, result="AAAA")):
                (await provider.run(op)).raise_for_status()

    async def recorded(self, lines: int) -> None:
        await self.until("select not exists (select from batch_work where lines_done <= $1)", lines)

    async def execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.database_url)
        await connection.execute(statement)
        await connection.close()

    async def until(self, query: str, *arguments: object) -> None:
        """Wait until the query returns true."""
        connection = await asyncpg.connect(self.database_url)
        try:
            with anyio.fail_after(_PROGRESS_TIMEOUT_S):
                while not await connection.fetchval(query, *arguments):  # noqa: ASYNC110 - the event is elsewhere
                    await anyio.sleep(0.01)
        finally:
            await connection.close()


async def killed_batch(scene: Scene, lines: int, kills: int, seed: int) -> list[str]:
    """Return descriptions of all violations. A fifth of the kills come while the files are being written."""
    dice = random.Random(seed)  # noqa: S311 - a seed, so that a run can be repeated
    late = min(max(kills // 5, 1), kills - 1)
    early = sorted(dice.randrange(1, lines) for _ in range(kills - late))
    async with httpx.AsyncClient(trust_env=False, timeout=300) as http:
        async with awake(scene.world.anvil):
            async with scene.life() as first:
                owner, submitter = await scene.owner(first.base_url, http)
                await _begin(http, owner, submitter, lines)
                await scene.recorded(early[0])
            for recorded in early[1:]:
                async with scene.life():
                    await scene.recorded(recorded)
                    await anyio.sleep(dice.random() / 4)  # at a random point of a step
                print(f"killed with {recorded} lines recorded", file=sys.stderr)
            async with scene.life() as last_but_late:
                await scene.until("select expanded from batch_work")
                await scene.until("select not exists (select from relays where state <> 'mined')")
                await scene.settle_some(last_but_late.base_url, http)
                await scene.execute("update batches set expires_at = clock_timestamp()")
                await scene.until("select finalizing_at is not null from batches")
            for _ in range(late - 1):
                async with scene.life():
                    await anyio.sleep(dice.random())
            print(f"killed {kills} times", file=sys.stderr)
        # From here on only the coordinator causes blocks. It has nothing left to send, so the chain stands still.
        async with scene.life():
            await scene.until("select expired_at is not null from batches")
            return await _broken(scene)


async def _begin(http: httpx.AsyncClient, owner: Party, submitter: Submitter, lines: int) -> None:
    content = jsonl(b"no json" if n % _BAD_EVERY == 0 else submitter.line() for n in range(lines))
    uploaded = await owner.upload("batch", content)
    uploaded.raise_for_status()
    body = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    created = await http.post("/v1/batches", json=body, headers=owner.authorization)
    created.raise_for_status()


async def _broken(scene: Scene) -> list[str]:
    async with AsyncExitStack() as stack:
        ground = await open_dependencies(read_config(scene.settings), stack)
        found = await broken_batches(ground.database, ground.pins)
        rows = await ground.database.pool.fetch("select job_id from batch_lines where relay_id is not null")
    promised = {row["job_id"] for row in rows}
    return found + await all_violations(scene.database_url, scene.world.anvil.rpc_url, scene.book, promised=promised)


async def run(lines: int, kills: int, seed: int) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        directory = rooms(Path(name))
        async with (
            running_anvil(pick_free(), directory / "anvil", directory) as anvil,
            running_postgres(pick_free(), directory / "postgres", directory) as postgres,
            running_cid_store(pick_free(), directory / "pins", directory) as pins,
        ):
            wallets = accounts.derive_wallets()
            market = await deploy_market(anvil, wallets)
            await postgres.execute("create database soak")
            url = postgres.url("soak")
            world = World(anvil, pins, postgres, wallets, market)
            settings = environment(world, url, **UNLIMITED, LOG_LEVEL="warning")
            book = AddressBook.parse(json.dumps(market.address_book).encode())
            return await killed_batch(Scene(world, url, settings, book), lines, kills, seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.batches")
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    chosen = parser.parse_args()
    if chosen.kills < 2 or chosen.lines < _SETTLED * 2:
        parser.error(f"at least 2 kills and {_SETTLED * 2} lines")
    broken = anyio.run(run, chosen.lines, chosen.kills, chosen.seed, backend_options={"use_uvloop": True})
    for what in broken:
        print(what, file=sys.stderr)
    print(
        f"{chosen.lines} lines, {chosen.kills} kills, seed {chosen.seed}: {'broken' if broken else 'all holds'}",
        file=sys.stderr,
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
