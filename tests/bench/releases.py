"""Releases of payload keys at a thousand a minute, during polls, reads, posts and claims of a busy market.

The real daemon on a real chain. Each release reads the chain. Targets: the share of due releases that were answered,
and no 5xx on any route.
"""

import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs
import httpx

from common.address_book import AddressBook
from common.box import PublicKey, SecretKey
from common.domains import Domains
from tests.bench.row import Row
from tests.bench.shared import WORLD, Ground
from tests.integration.coordinatord.scene.party import Body, Party, wallet_of

A_MINUTE: Final = 1000
SECONDS: Final = 15
DUE: Final = A_MINUTE * SECONDS // 60
PARTS: Final = 5  # of the measured seconds
JOBS: Final = 4
READS_PAUSE: Final = 0.05


def rows() -> list[Row]:
    answers = WORLD.run(_measure).parts
    due, released = DUE // PARTS, [part["/release", 200] for part in answers]
    clean = [100 * sum(many for (_, status), many in part.items() if status < 500) / part.total() for part in answers]
    what, beside = (
        f"releases answered at {A_MINUTE:,} a minute, in {SECONDS} s",
        sum(part.total() for part in answers) - DUE,
    )
    return [
        Row.of(f"{what}, the fewest of {due}", released, "releases", f"all {due}", due, target=1, by=min),
        Row.of(
            "answers without 5xx meanwhile, on all routes",
            clean,
            "%",
            f"all ({beside:,} beside)",
            100,
            target=1,
            by=min,
        ),
    ]


@attrs.define
class _Load:
    http: httpx.AsyncClient
    parts: list[Counter[tuple[str, int]]] = attrs.field(factory=lambda: [Counter() for _ in range(PARTS)])
    """A release counts in the part of the time in which it was due, all else where it is answered."""
    part: int = 0

    def note(self, what: str, answer: httpx.Response, part: int | None = None) -> None:
        self.parts[self.part if part is None else part][what, answer.status_code] += 1

    async def release(self, body: Body, part: int) -> None:
        self.note("/release", await self.http.post("/release", json=body), part)

    async def reads(self, job: str, poller: Party) -> None:
        while True:
            self.note("poll", await self.http.get("/evm/jobs?state=Open&model=1&free=1", headers=poller.authorization))
            for path in (f"/v1/jobs/{job}", "/key", "/readyz"):
                self.note(path, await self.http.get(path))
            await anyio.sleep(READS_PAUSE)

    async def posts_and_claims(self, client: Party, provider: Party) -> None:
        while True:
            body = await client.paid()
            self.note("post", await self.http.post("/v1/jobs", json=body))
            self.note("claim", await provider.run(provider.claim(body["job_id"])))


async def _measure(on: Ground) -> _Load:
    async with _market(on) as (http, parties):
        client, buyer, provider, other = parties
        await provider.sign_in("provider")
        await other.sign_in("provider")
        key = PublicKey(bytes.fromhex((await http.get("/key")).json()["escrow_public_key"]))
        response = SecretKey.generate().public
        jobs = []
        for _ in range(JOBS):
            container = client.container(to=key)
            job = (await client.post(container=container))["job_id"]
            claim = await provider.run(provider.claim(job))
            assert claim.status_code == 201, claim.text
            jobs.append((job, container))
        load = _Load(http)
        async with anyio.create_task_group() as beside:
            beside.start_soon(load.reads, jobs[0][0], other)
            beside.start_soon(load.posts_and_claims, buyer, other)
            started = time.monotonic()
            async with anyio.create_task_group() as releases:
                for n in range(DUE):
                    await anyio.sleep(max(0, started + n * SECONDS / DUE - time.monotonic()))
                    job, container = jobs[n % JOBS]
                    load.part = n * PARTS // DUE
                    releases.start_soon(load.release, provider.release(job, container, response), load.part)
            beside.cancel_scope.cancel()
        return load


@asynccontextmanager
async def _market(on: Ground) -> AsyncIterator[tuple[httpx.AsyncClient, tuple[Party, ...]]]:
    market, cast = on.world.market, on.world.cast
    await on.world.anvil.mine_every(1)
    async with httpx.AsyncClient(base_url=on.coordinator.base_url, trust_env=False, timeout=90) as http:
        book = AddressBook.parse(json.dumps(market.address_book).encode())
        wallets = [*cast.with_role("client")[:2], *cast.with_role("provider")[:2]]
        yield (
            http,
            tuple(
                Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)
                for wallet in wallets
            ),
        )
