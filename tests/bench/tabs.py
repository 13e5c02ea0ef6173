"""Relays during streaming tabs: two coordinators over one PostgreSQL, with and without frames, in turns.

Each coordinator has a provider that posts one frame of each of its tabs every 50 ms, as svcd groups tokens. Half of the
owners read at the other coordinator. A provider sends capacity requests to both coordinators at a fixed pace, and their
time until the receipt is measured. The frames come from a process of their own and carry the time of their post. Each
turn without tabs is followed by one with them, and the ratio of the two p99s is a sample. It takes two minutes.

    python -m tests.bench.tabs [--tabs 200] [--turns 5] [--seconds 7] [--relays 10]
"""

import argparse
import asyncio
import json
import re
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs
import httpx
import pybase64

from common.domains import Domains
from common.scalars import hex_of
from devnet import accounts
from devnet.anvil import running_anvil
from devnet.app import deploy_market
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from devnet.world import World
from tests.bench.provider import cpu_seconds
from tests.bench.row import MIN_SAMPLES, Row, table
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import environment
from tests.support.cid_store import running_cid_store

GROUPING_S: Final = 0.05
FRAME_BYTES: Final = 300  # a group of tokens, sealed
SETTLING_S: Final = 1.0  # before a turn is measured
P99_RATIO: Final = 2.0  # of relays beside the tabs, at most
_TIME: Final = struct.Struct(">d")
_FRAME: Final = re.compile(rb"event: frame\ndata: (\S+)\n")
_NO_BUDGET: Final = dict.fromkeys(
    (
        "posts_daily_gas",
        "work_daily_gas",
        "upkeep_daily_gas",
        "unlisted_upkeep_daily_gas",
        "newcomers_daily_gas",
        "daily_gas_per_settled_job",
    ),
    0,
)


@attrs.frozen
class Tab:
    """Tab of the benchmark. `port` is that of its owner's coordinator."""

    job_id: str
    port: int


@attrs.frozen
class Load:
    """Frames of a turn: tokens of sessions, and the tabs by the port of their provider's coordinator."""

    owner: str
    providers: dict[str, str]
    tabs: dict[str, list[Tab]]
    seconds: float


# --- frames, in a process of their own --------------------------------------------------------------------------


async def read_frames(tab: Tab, token: str, delays: list[float], opened: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", tab.port)
    writer.write(
        f"GET /v1/tabs/{tab.job_id}/messages HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n\r\n".encode()
    )
    rest = b""
    try:
        if b" 200 " not in await reader.readline():
            raise RuntimeError((await reader.read(1000)).decode())
        opened.set()
        while piece := await reader.read(1 << 16):
            rest, now, end = rest + piece, time.monotonic(), 0
            for found in _FRAME.finditer(rest):
                delays.append(now - _TIME.unpack_from(pybase64.b64decode(found[1]))[0])
                end = found.end()
            rest = rest[end:]
    finally:
        writer.close()


async def post_frames(port: str, token: str, tabs: Sequence[Tab], until: float, posts: list[float]) -> None:
    due = time.monotonic()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
        while (now := time.monotonic()) < until:
            frame = pybase64.b64encode(_TIME.pack(now) + bytes(FRAME_BYTES)).decode()
            body = json.dumps({"messages": [{"job_id": tab.job_id, "body": frame} for tab in tabs]})
            answer = await http.post("/v1/tabs/messages", content=body, headers={"authorization": f"Bearer {token}"})
            if answer.status_code != 200 or answer.json()["refused"]:
                raise RuntimeError(answer.text)
            posts.append(time.monotonic() - now)
            due = max(due + GROUPING_S, now)
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def send_load(load: Load) -> dict[str, float]:
    delays: list[float] = []
    posts: list[float] = []
    tabs = [tab for of_one in load.tabs.values() for tab in of_one]
    opened = [asyncio.Event() for _ in tabs]
    async with asyncio.TaskGroup() as group:
        reads = [
            group.create_task(read_frames(tab, load.owner, delays, event))
            for tab, event in zip(tabs, opened, strict=True)
        ]
        for event in opened:
            await event.wait()
        print("sending", flush=True)
        until, cpu = time.monotonic() + load.seconds, time.process_time()
        async with asyncio.TaskGroup() as posting:
            for port, token in load.providers.items():
                posting.create_task(post_frames(port, token, load.tabs[port], until, posts))
        await asyncio.sleep(0.5)
        for read in reads:
            read.cancel()
    sent = sum(len(load.tabs[port]) for port in load.providers) / len(load.providers) * len(posts)
    return (
        {
            "sent": sent,
            "frames/s": len(delays) / load.seconds,
            "CPU of frames": (time.process_time() - cpu) / load.seconds,
        }
        | times("frame", delays)
        | times("post", posts)
    )


# --- relays, in this process ------------------------------------------------------------------------------------


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children. PostgreSQL has a child for each connection."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_seconds(pid) + sum(cpu_seconds(int(child)) for child in children)


def times(what: str, samples: Sequence[float]) -> dict[str, float]:
    """Return the number, median and p99 of samples."""
    if not samples:
        return {f"{what}s": 0}
    return {
        f"{what}s": len(samples),
        f"{what} p50 ms": 1000 * statistics.median(samples),
        f"{what} p99 ms": p99(samples),
    }


def p99(seconds: Sequence[float]) -> float:
    """Return the p99 in milliseconds."""
    return 1000 * sorted(seconds)[int(len(seconds) * 0.99)]


@attrs.define
class Relays:
    """Capacity requests of two providers at a fixed pace, each at its coordinator."""

    parties: Sequence[Party]
    issued_at: int = attrs.field(factory=lambda: int(time.time()) + 60)

    async def measured(self, seconds: float, per_second: float) -> list[float]:
        """Return the time of each request. A provider waits for each response, because few of its requests may wait."""
        found: list[float] = []
        if not per_second:
            await anyio.sleep(seconds)
            return found
        until = time.monotonic() + seconds
        interval = len(self.parties) / per_second

        async def send(party: Party) -> None:
            while (began := time.monotonic()) < until:
                self.issued_at += 1
                answer = await party.run(party.request_capacity(8, self.issued_at))
                if answer.status_code != 201:
                    raise RuntimeError(answer.text)
                found.append(time.monotonic() - began)
                await anyio.sleep(max(0.0, began + interval - time.monotonic()))

        async with anyio.create_task_group() as tasks:
            for party in self.parties:
                tasks.start_soon(send, party)
        return found


async def add_tabs(url: str, tabs: int, owner: bytes) -> list[str]:
    """Insert claimed jobs of the owner, half of each of two providers. Return their ids in this order."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "insert into jobs (job_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in, units_out,"
            " designated, expires_at, cap, fee_bps, gas_fee, task_cid, pay_sig, posted_block, posted_log, ordinal,"
            " state, provider_id, claimed_at) select sha256(n::text::bytea), $2, sha256(n::text::bytea), 1, 3600, 1, 1,"
            " 1, 1000, 1 + n % 2, 2000000000, 3000, 250, 2000, 'cid', '', 1, n, 1000000 + n, 1, 1 + n % 2, 1900000000"
            " from generate_series(0, $1::integer - 1) as n returning job_id",
            tabs,
            owner,
        )
    finally:
        await connection.close()
    return [hex_of(row["job_id"]) for row in rows]


async def turn(relays: Relays, load: Load | None, daemons: dict[str, int], options: argparse.Namespace) -> list[float]:
    process = output = None
    if load is not None:
        text = json.dumps(attrs.asdict(load))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.tabs", "--load", text, stdout=asyncio.subprocess.PIPE
        )
        output = process.stdout
        if output is None or await output.readline() != b"sending\n":
            raise RuntimeError("no frames were sent")
    await anyio.sleep(SETTLING_S)
    before = {name: tree_cpu_seconds(pid) for name, pid in daemons.items()}
    samples = await relays.measured(options.seconds, options.relays)
    spent = {name: (tree_cpu_seconds(pid) - before[name]) / options.seconds for name, pid in daemons.items()}
    printed = times("relay", samples)
    printed |= {f"CPU of {name}": seconds for name, seconds in spent.items()}
    if process is not None and output is not None:
        printed |= json.loads(await output.read())
        await process.wait()
    print("with tabs" if load else "without  ", {name: round(value, 3) for name, value in printed.items()}, flush=True)
    return samples


async def measure(options: argparse.Namespace) -> None:
    wallets = accounts.derive_wallets()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("anvil", "pins", "postgres"):
            (folder / part).mkdir()
        async with (
            running_anvil(pick_free(), folder / "anvil", folder) as anvil,
            running_cid_store(pick_free(), folder / "pins", folder) as pins,
            running_postgres(pick_free(), folder / "postgres", folder) as postgres,
        ):
            world = World(anvil, pins, postgres, wallets, await deploy_market(anvil, wallets))
            settings = environment(world, postgres.url(), gas=_NO_BUDGET, event_listeners_per_caller=4096)
            async with (
                running(settings, pick_free(), pick_free()) as one,
                running(settings, pick_free(), pick_free()) as two,
            ):
                await compare(world, one, two, options)


async def compare(world: World, one: Coordinator, two: Coordinator, options: argparse.Namespace) -> None:
    book, wallets = address_book(world), world.wallets
    providers = wallets.with_role("provider")
    async with (
        httpx.AsyncClient(base_url=one.base_url, trust_env=False, timeout=60) as http,
        httpx.AsyncClient(base_url=two.base_url, trust_env=False, timeout=60) as http_two,
    ):
        parties = [
            Party(wallet_of(wallet), Domains.of(book), book.job_registry, at, wallet.box_key)
            for wallet, at in ((wallets.with_role("client")[0], http), (providers[0], http), (providers[1], http_two))
        ]
        owner, *serving = parties
        await owner.sign_in()
        for party in serving:
            await party.sign_in("provider")
        jobs = await add_tabs(world.postgres.url(), options.tabs, owner.wallet.address)
        load = load_of(owner, dict(zip((one.port, two.port), serving, strict=True)), jobs, options.seconds)
        daemons = {"one": one.process.pid, "two": two.process.pid, "PostgreSQL": world.postgres.child.pid}
        await interleave(Relays(serving), load, daemons, options)


def load_of(owner: Party, providers: dict[int, Party], jobs: Sequence[str], seconds: float) -> Load:
    """Give each provider half of the tabs. Half of their owners read at the other coordinator."""
    ports = list(providers)
    return Load(
        owner.token,
        {str(port): party.token for port, party in providers.items()},
        {
            str(port): [Tab(job, ports[n // 2 % 2]) for n, job in enumerate(jobs) if n % 2 == side]
            for side, port in enumerate(ports)
        },
        seconds + SETTLING_S,
    )


async def interleave(relays: Relays, load: Load, daemons: dict[str, int], options: argparse.Namespace) -> None:
    await relays.measured(SETTLING_S, options.relays)  # warm up
    pairs = [
        (await turn(relays, None, daemons, options), await turn(relays, load, daemons, options))
        for _ in range(options.turns)
    ]
    if options.relays:
        print(report(pairs))


def report(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> str:
    """Return a table of the relays' times without and with tabs, turn by turn."""
    rows = []
    for name, figure in (("median", lambda turn: 1000 * statistics.median(turn)), ("p99", p99)):
        without, beside = ([figure(pair[side]) for pair in pairs] for side in (0, 1))
        against = f"without tabs: {statistics.median(without):.0f} ms"
        rows.append(Row.of(f"{name} of relays beside tabs", beside, "ms", against, without, at_most=P99_RATIO))
    return table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tabs", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=7.0)
    parser.add_argument("--relays", type=float, default=10.0, help="per second; 0 measures the CPU time alone")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns < MIN_SAMPLES:
        parser.error(f"--turns must be at least {MIN_SAMPLES}")
    if options.load is None:
        anyio.run(measure, options)
        return
    given = json.loads(options.load)
    given["tabs"] = {port: [Tab(**tab) for tab in tabs] for port, tabs in given["tabs"].items()}
    print(json.dumps(asyncio.run(send_load(Load(**given)))))


if __name__ == "__main__":
    main()
