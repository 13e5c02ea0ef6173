"""A batch through a complete coordinator: how fast lines are checked and posted, the memory used, and the delay of
single submissions during the batch.

For comparison, in the same world: bare signature recoveries on as many cores, and the relayer with ready posts.

    python -m tests.bench.batches [--lines 50000]
"""

import argparse
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs
import httpx
from btclib_secp256k1 import ffi, lib
from btclib_secp256k1.context import ctx

from common.address_book import AddressBook
from common.api.fields import read_object
from common.domains import Domains
from common.messages.payments import job_payment
from coordinatord.api.batches import posts_sql
from coordinatord.api.batches.line_checks import LineChecks, PaidLine
from coordinatord.api.batches.line_reader import MAX_LINES, InputLine
from coordinatord.api.batches.posts_sql import Allowance, Post
from coordinatord.api.orders.bodies import OrderBody, Paid
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.relayer.budgets_sql import Budget, GasLimits, Spending
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.rpc.client import open_rpc
from devnet import accounts
from devnet.anvil import Anvil, running_anvil
from devnet.app import deployed_market
from devnet.market import DevnetMarket
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from devnet.world import World
from tests.bench.quick_store import quick_store
from tests.bench.relaying import ROOMY, ROOMY_BLOCK, rooms
from tests.bench.row import Row, Turns, interleaved, parts
from tests.fakes.budgets import UNLIMITED
from tests.fakes.submissions import Body, Submitter, jsonl
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import environment

LINES: Final = 4_000  # the longest allowed have 50,000
LINES_BY_DEFAULT: Final = 3_000
PAYLOAD: Final = 870  # so that a line has 2 KiB
CHECKED: Final = MAX_LINES  # as many as a worker checks together
ROUNDS: Final = 15
PARTS: Final = 5  # of one run, in order of time
DEPTH: Final = 256  # RELAY_MAX_DEPTH, of which 32 is the default; RELAY_COALESCE_MAX is at its default
SINGLES: Final = 20  # each takes a block
CALLERS: Final = 4  # of concurrent single submissions
MEMORY_LIMIT: Final = 250  # MiB above idle
_RELAYER_SHARE: Final = 5  # the relayer alone gets a fifth of the lines


@attrs.frozen
class Stand:
    """A coordinator as operators run it, and a signed-in owner."""

    coordinator: Coordinator
    database_url: str
    anvil: Anvil
    owner: Party
    submitter: Submitter


@asynccontextmanager
async def stand(**tuned: int) -> AsyncIterator[Stand]:
    """Use default settings, except for the `tuned` ones and budgets."""
    with tempfile.TemporaryDirectory() as name:
        directory = rooms(Path(name))
        async with (
            running_anvil(pick_free(), directory / "anvil", directory, block_gas_limit=ROOMY_BLOCK) as anvil,
            running_postgres(pick_free(), directory / "postgres", directory) as postgres,
            quick_store(pick_free(), directory) as store,
        ):
            cast = accounts.derive()
            market = await deployed_market(anvil, cast)
            await postgres.execute("create database bench")
            url = postgres.url("bench")
            world = World(anvil, store, postgres, cast, market)
            settings = environment(world, url, **UNLIMITED, **tuned, LOG_LEVEL="warning")
            async with (
                running(settings, pick_free(), pick_free()) as coordinator,
                httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=120) as http,
            ):
                owner, submitter = await _owner(anvil, market, http)
                # By the clock, like real chains: everything that waits for one block is mined in it together.
                await anvil.mine_every(1)
                yield Stand(coordinator, url, anvil, owner, submitter)


async def _owner(anvil: Anvil, market: DevnetMarket, http: httpx.AsyncClient) -> tuple[Party, Submitter]:
    book = AddressBook.parse(json.dumps(market.address_book).encode())
    wallet = accounts.derive().with_role("client")[0]
    owner = Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)
    await owner.sign_in()
    async with open_rpc(anvil.rpc_url) as rpc:
        terms = await JobRegistry(rpc, book.job_registry).fees()
    return owner, Submitter(owner.wallet, owner.domains, book.chain_id, book.job_registry, terms, owner.box_key)


# --- checking --------------------------------------------------------------------------------------------------


def checking(submitter: Submitter) -> Turns:
    """Return lines, and pairs of bare recoveries of their signatures, per second in one thread, as in a worker."""
    texts = [json.dumps(line).encode() for line in submitter.lines(CHECKED, PAYLOAD)]
    lines = [InputLine(number, text) for number, text in enumerate(texts, 1)]
    checks = LineChecks(submitter.domains, submitter.registry, "/v1/responses", submitter.terms, time.time())
    signed = [pair for one in checks.check(lines) if isinstance(one, PaidLine) for pair in _signed(submitter, one.paid)]

    def ours() -> int:
        done = checks.check(lines)
        if not all(isinstance(checked, PaidLine) for checked in done):
            raise AssertionError("a good line was skipped")
        return len(done)

    recover, key = lib.secp256k1_ecdsa_recover, ffi.new("secp256k1_pubkey *")
    ready = [(_parsed(signature), digest) for digest, signature in signed]

    def limit() -> int:
        for signature, digest in ready:
            recover(ctx, key, signature, digest)
        return len(ready) // 2

    return interleaved({"ours": ours, "limit": limit}, ROUNDS)


def _parsed(signature: bytes) -> object:
    parsed = ffi.new("secp256k1_ecdsa_recoverable_signature *")
    parse = lib.secp256k1_ecdsa_recoverable_signature_parse_compact
    if not parse(ctx, parsed, signature, signature[64] - 27):
        raise AssertionError("a good signature was refused")
    return parsed


def _signed(submitter: Submitter, paid: Paid) -> list[tuple[bytes, bytes]]:
    body, domains = paid.body, submitter.domains
    payment = job_payment(body.owner, submitter.registry, paid.amount, body.expires_at, body.job_id)
    return [(domains.jobs.digest(body), body.signature), (domains.token.digest(payment), paid.payment)]


# --- posting ---------------------------------------------------------------------------------------------------


_MINED: Final = "select count(*) from relays where state = 'mined' and priority = 3"
_ENDED_AT: Final = (
    "select at from (select extract(epoch from ended_at) as at from relays where state = 'mined' and priority = 3"
    " order by ended_at desc limit $1) latest order by at"
)
# Counting mined relays reads the whole table, so this is done only at the end.
_LIVE: Final = (
    "select exists (select from relays where state in ('queued', 'signed') and priority = 3)"
    " or exists (select from batch_work where not expanded)"
)


async def _watching(on: Stand) -> "asyncpg.Connection[asyncpg.Record]":
    return await asyncpg.connect(on.database_url, server_settings={"enable_seqscan": "off"})


async def _until_mined(connection: "asyncpg.Connection[asyncpg.Record]", posts: int) -> None:
    """Wait until this many posts of batches are mined, and none is pending."""
    while await connection.fetchval(_LIVE) or await connection.fetchval(_MINED) < posts:  # noqa: ASYNC110 - elsewhere
        await anyio.sleep(0.2)  # each query takes milliseconds from the measured work


async def relayer_alone(on: Stand, lines: Sequence[Body]) -> float:
    """Return seconds for ready posts, without checks or storage."""
    posts = []
    for line in lines:
        body = read_object(OrderBody, line)
        paid = Paid(body, body.auth_sig or b"", body.amount or 0)
        cid = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
        posts.append(Post(body.job_id, paid.dedupe(cid), paid.calldata(cid), body.owner, paid.amount))
    spending = Spending(on.owner.wallet.address, gas_estimate(RelayKind.POST), GasLimits(Budget.POSTS, None, None))
    allowances = {spending.signer: Allowance(spending, None, -1)}
    connection, watching = await asyncpg.connect(on.database_url), await _watching(on)
    before = await watching.fetchval(_MINED)
    started = time.perf_counter()
    while posts:
        if await posts_sql.room(connection) <= 0:
            await anyio.sleep(0.01)
            continue
        async with connection.transaction():
            await posts_sql.insert(connection, on.submitter.registry, posts[:512], allowances)
        del posts[:512]
    await _until_mined(watching, before + len(lines))
    elapsed = time.perf_counter() - started
    await connection.close()
    await watching.close()
    return elapsed


async def by_callers(on: Stand, bodies: Iterator[Body]) -> list[float]:
    """Return seconds of single submissions, by several concurrent callers."""
    times = list[float]()

    async def caller() -> None:
        times.extend(await singles(on, bodies, SINGLES // CALLERS))

    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(caller)
    return times


async def singles(on: Stand, bodies: Iterator[Body], count: int) -> list[float]:
    """Return seconds of single submissions, one after another."""
    times = []
    for body in islice(bodies, count):
        started = time.perf_counter()
        answer = await on.owner.http.post("/v1/jobs", json=body)
        times.append(time.perf_counter() - started)
        if answer.status_code != 201:
            raise AssertionError(answer.text)
        await anyio.sleep(0.02)
    return times


@attrs.frozen
class Posting:
    rates: list[float]  # lines per second, of each part of them as they were mined; the first from the batch's creation
    resident: list[int]  # bytes of memory, many times a second
    beside: list[float]  # seconds of concurrent single submissions


async def posting(on: Stand, file_id: str, lines: int, bodies: Iterator[Body] | None) -> Posting:
    """Post a batch, with concurrent single submissions if any."""
    watching = await _watching(on)
    resident, beside = list[int](), list[float]()

    async def watch_memory() -> None:
        while True:
            resident.append(on.coordinator.resident_bytes())
            await anyio.sleep(0.05)

    async def submit_beside(bodies: Iterator[Body]) -> None:
        while True:
            beside.extend(await singles(on, bodies, 1))

    before = await watching.fetchval(_MINED)
    started = time.time()
    async with anyio.create_task_group() as tasks:
        body = {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"}
        created = await on.owner.http.post("/v1/batches", json=body, headers=on.owner.authorization)
        if created.status_code != 200:
            raise AssertionError(created.text)
        tasks.start_soon(watch_memory)
        if bodies:
            for _ in range(CALLERS):
                tasks.start_soon(submit_beside, bodies)
        await _until_mined(watching, before + lines)
        tasks.cancel_scope.cancel()
    ended = [float(row["at"]) for row in await watching.fetch(_ENDED_AT, lines)]
    await watching.close()
    marks = [started, *(part[-1] for part in parts(ended, PARTS))]
    rates = [lines / PARTS / (mark - last) for last, mark in pairwise(marks)]
    return Posting(rates, resident, beside)


async def whole(lines: int) -> list[Row]:
    async with stand(RELAY_MAX_DEPTH=DEPTH) as on:
        idle = on.coordinator.resident_bytes()

        # Measure before and after the batch. A node slows down as its storage grows, and a machine with other load.
        some = max(lines // (2 * _RELAYER_SHARE), 1)
        seconds = await relayer_alone(on, on.submitter.lines(some, PAYLOAD))
        bodies = iter(lambda: on.submitter.line(secrets.token_bytes(PAYLOAD)), None)
        quiet = await by_callers(on, bodies)
        content = jsonl(on.submitter.lines(lines, PAYLOAD))
        size = len(content) / lines
        file_id = await _uploaded(on, content)
        del content
        done = await posting(on, file_id, lines, bodies)
        seconds += await relayer_alone(on, on.submitter.lines(some, PAYLOAD))
        alone = 2 * some / seconds
    memory = [(max(part) - idle) / 2**20 for part in parts(done.resident, PARTS)]
    beside = [1000 * p95(part) for part in parts(done.beside, PARTS)]
    what = f"a batch of {lines:,} lines of {size:,.0f} bytes, RELAY_MAX_DEPTH {DEPTH}, {ROOMY}"
    return [
        _posted(what, done.rates, alone, 0.6),
        Row.of(
            f"{what}: most memory above idle", memory, "MiB", f"{MEMORY_LIMIT} MiB", MEMORY_LIMIT, at_most=1, by=max
        ),
        Row.of(
            f"p95 of each fifth of the single submissions beside it, RELAY_MAX_DEPTH {DEPTH}, {ROOMY}",
            beside,
            "ms",
            "their p95 alone",
            1000 * p95(quiet),
            at_most=2,
        ),
    ]


def p95(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


async def by_default(lines: int) -> tuple[Submitter, Row]:
    """Run a shorter batch without other load. Also return its submitter, for measurements without a coordinator."""
    async with stand() as on:
        seconds = await relayer_alone(on, on.submitter.lines(lines // 2, PAYLOAD))
        file_id = await _uploaded(on, jsonl(on.submitter.lines(lines, PAYLOAD)))
        done = await posting(on, file_id, lines, None)
        seconds += await relayer_alone(on, on.submitter.lines(lines // 2, PAYLOAD))
    what = f"a batch of {lines:,} lines, default settings without budgets, {ROOMY}"
    return on.submitter, _posted(what, done.rates, 2 * (lines // 2) / seconds, 0.5)


async def _uploaded(on: Stand, content: bytes) -> str:
    uploaded = await on.owner.upload("batch", content)
    if uploaded.status_code != 200:
        raise AssertionError(uploaded.text)
    return str(uploaded.json()["id"])


def _posted(what: str, rates: list[float], alone: float, target: float) -> Row:
    against = f"ready posts ({alone:,.0f} a second)"
    return Row.of(f"{what}: posted", rates, "lines/s", against, alone, target=target, by=statistics.harmonic_mean)


def rows(lines: int = LINES) -> list[Row]:
    submitter, default = anyio.run(by_default, min(lines, LINES_BY_DEFAULT), backend_options={"use_uvloop": True})
    against = "bare recoveries in one thread"
    row = checking(submitter).row("lines checked in one thread", "ours", "limit", against, target=0.7, unit="lines/s")
    return [row, default, *anyio.run(whole, lines, backend_options={"use_uvloop": True})]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.batches")
    parser.add_argument("--lines", type=int, default=LINES)
    for row in rows(parser.parse_args().lines):
        print(f"{row.name}: {row.value:,.1f} {row.unit}, {row.ratio:.2f} of {row.against}", file=sys.stdout)


if __name__ == "__main__":
    main()
