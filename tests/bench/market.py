"""The complete market: jobs a second that are posted, claimed, run by echo, settled and opened, and the bottleneck.

A devnet like that of `make devnet`, with real daemons, default settings except the provider's slots, and one block per
second. A client buys batches of open lines. In the first, which does not count, wallets earn their gas budgets and the
provider its capacity. The second is measured, with the CPU time of each process. Its samples are equal parts of its
blocks, from when a tenth of the jobs had settled to when a tenth had not, or of its time.

Then the same with a second coordinator, with a separate relayer account, and a second provider connected to it. Each
coordinator has a customer with half of the lines. All share the same cores, so throughput does not show the gain. CPU
accounting does: the throughput of the busiest daemon if it had a separate core. The machine's speed may change by half
between the two runs, so each is corrected by its slowdown.

    python -m tests.bench.market [--jobs 1000] [--slots 512]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import harmonic_mean, mean
from typing import Any, Final

import anyio
import attrs
import httpx

from common.artifacts import event_topic, load
from devnet.anvil import BLOCK_GAS_LIMIT, Anvil
from devnet.catalogue import MODELS
from devnet.coordinator import running_coordinator
from devnet.ports import pick_free
from devnet.provider import running_provider
from devnet.settings import SLOTS as DEFAULT_SLOTS
from devnet.world import Devnet
from svc.client import Client
from tests.bench.machine import slowdown
from tests.bench.row import Row, parts
from tests.bench.shared import WORLD, Ground
from tests.cpu_times import cpu_of

JOBS: Final = 1_000  # per batch: more than the slots, so that the pace is not that of a burst
MOST_JOBS: Final = 4 * JOBS  # on a machine on which this many jobs settle within a few blocks
PARTS: Final = 3  # of a batch
JOBS_BY_DEFAULT: Final = 300
OF_TWO: Final = 0.8  # of the jobs, without a pace
FIRST: Final = 150
SLOTS: Final = 512
GROWTH: Final = 1.4  # times the jobs, with two of each daemon; fixed work is done twice
TARGET: Final = 80.0  # jobs a second
OF_SLOTS: Final = 0.5  # of the default slots' rate if each job took two blocks
CPU_LIMIT: Final = 50.0  # ms of all processes together; two cores take 25 at the target pace
_RATES: Final = {"rate_in": 100_000, "rate_out": 200_000}  # the devnet's provider's asks
_SECONDS: Final = 600.0
# A smaller pool for the buyer. httpx checks each connection for each request, which would be most of the cost of a
# result.
_CONNECTIONS: Final = httpx.Limits(max_connections=8)
_DAEMONS: Final = ("coordinatord", "svcd")
_GRACE: Final = 0.1  # of the jobs: the first and last ones are excluded from the pace
_LOOK_EVERY: Final = 0.5  # seconds; reading metrics costs milliseconds, and a slot is used for two blocks


@attrs.frozen
class Ends:
    """Times at which numbers of jobs had settled on the chain."""

    blocks: list[tuple[int, int, int]]  # time, settles, gas used

    def paces(self, jobs: int) -> list[float] | None:
        """Jobs settled a second in each part, from when a tenth of them had to when a tenth had not. None where that
        took too few blocks."""
        low, high = jobs * _GRACE, jobs * (1 - _GRACE)
        done, counted = 0, []  # time and settles of the blocks in between, and before them that in which it began
        for at, settles, _ in self.blocks:
            before, done = done, done + settles
            if done >= low and before < high:
                counted.append((at, settles))
        if len(counted) <= PARTS:
            return None
        ends = [0, *(part[-1] for part in parts(range(1, len(counted)), PARTS))]
        return [
            sum(settles for _, settles in counted[first + 1 : last + 1]) / max(1, counted[last][0] - counted[first][0])
            for first, last in pairwise(ends)
        ]

    def fullest(self, limit: int) -> float:
        return max(gas for *_, gas in self.blocks) / limit


@attrs.frozen
class Taken:
    jobs: int
    seconds: float  # from the first post to the last opened result
    paces: list[float]  # jobs settled per second, in each part
    slices: list[dict[str, float]]  # seconds of CPU of each process, in equal parts of the time
    slowdown: float  # of the machine during the run, relative to the targets' machine
    gas: float  # share of the fullest block
    held: float  # largest share of used slots

    @property
    def cpu(self) -> dict[str, float]:
        return {name: sum(part[name] for part in self.slices) for name in self.slices[0]}

    @property
    def cores(self) -> float:
        return sum(self.cpu.values()) / self.seconds

    @property
    def cpu_a_job(self) -> list[float]:
        """Return milliseconds of all processes in each part, per equal share of jobs. Their mean is that of the whole
        batch."""
        return [sum(part.values()) * len(self.slices) / self.jobs * 1000 for part in self.slices]

    @property
    def busiest(self) -> list[float]:
        """Return jobs a second that the busiest daemon would reach with a separate core of the targets' machine.
        Computed per part; the harmonic mean is that of the whole batch. Chain and database have several processes or
        threads, so a core does not bound them."""
        cpu = self.cpu
        name = max((name for name in cpu if name.startswith(_DAEMONS)), key=lambda name: cpu[name])
        return [self.slowdown * self.jobs / len(self.slices) / part[name] for part in self.slices]

    @property
    def each(self) -> str:
        """Describe the CPU per job of each process."""
        return ", ".join(f"{name} {seconds / self.jobs * 1000:.1f}" for name, seconds in self.cpu.items())

    @property
    def limit(self) -> str:
        """Describe the bottleneck."""
        cores = os.cpu_count() or 1
        shares = {
            "CPU": self.cores / cores,
            "gas": self.gas,
            "slots": self.held,
        }
        most = max(shares, key=lambda name: shares[name])
        return f"{most}: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def processes(up: Devnet) -> dict[str, int]:
    return {
        "anvil": up.world.anvil.child.pid,
        **{child.program.name: child.pid for child in up.world.pins.children},
        "postgresql": up.world.postgres.child.pid,
        "coordinatord": up.coordinator.child.pid,
        "svcd": up.provider.child.pid,
    }


@asynccontextmanager
async def second(up: Devnet, slots: int) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """Another coordinator over the same database, with the other relayer account, and another provider behind it: its
    address, and the ids of their processes."""
    world, cast = up.world, up.world.cast
    with tempfile.TemporaryDirectory() as directory:
        async with (
            running_coordinator(
                port=pick_free(),
                metrics_port=pick_free(),
                rpc_url=world.anvil.rpc_url,
                database_url=world.postgres.url(),
                pins=world.pins,
                address_book=world.market.address_book,
                relayer_key=cast.with_role("relayer")[1].private_key,
                operator_key=cast.operator.private_key,
                logs=Path(directory),
            ) as coordinator,
            running_provider(
                account=cast.with_role("provider")[1],
                coordinator_url=coordinator.base_url,
                rpc_url=world.anvil.rpc_url,
                gateway=world.pins.gateway,
                address_book=world.market.address_book,
                metrics_port=pick_free(),
                directory=Path(directory),
                logs=Path(directory),
                slots=slots,
            ) as provider,
        ):
            yield coordinator.base_url, {"coordinatord 2": coordinator.child.pid, "svcd 2": provider.child.pid}


@asynccontextmanager
async def customer(up: Devnet, url: str) -> AsyncIterator[Client]:
    gateway = up.world.pins.gateway
    key = up.world.cast.with_role("client")[0].private_key
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, limits=_CONNECTIONS) as http,
        Client(url, http=http, wallet_key=key, gateways=gateway, environment={}) as client,
    ):
        yield client


async def bought(client: Client, jobs: int) -> None:
    """Buy a batch of open lines, and open each. Raise if a result is wrong."""
    lines = [
        json.dumps({"body": {"model": MODELS[0].name, "input": f"job {number}", "max_output_tokens": 64, **_RATES}})
        for number in range(jobs)
    ]
    prepared = await client.batches.prepare(lines, window="1h")
    batch = await client.batches.create(prepared)
    ended = await client.batches.wait(batch.id, every=0.5)
    opened = 0
    async for result in client.batches.results(ended):
        if result.result is None:
            raise RuntimeError(f"{result.id} ended without a result: {result.error}")
        opened += 1
    if opened != jobs:
        raise RuntimeError(f"{opened} of {jobs} results were opened; the batch ended as {ended.status}")


async def shared_out(clients: Sequence[Client], jobs: int) -> None:
    """Split the jobs over all clients, which run concurrently."""
    async with anyio.create_task_group() as tasks:
        for client, some in zip(clients, parts(range(jobs), len(clients)), strict=True):
            tasks.start_soon(bought, client, len(some))


async def measured(up: Devnet, clients: Sequence[Client], jobs: int, slots: int, further: Mapping[str, int]) -> Taken:
    """Buy this many jobs, and twice as many again while they settle in too few blocks."""
    await shared_out(clients, FIRST)
    watched = Watched(up.provider.metrics_url, slots, {**processes(up), **further})
    first = int(await up.world.anvil.call("eth_blockNumber"), 16) + 1
    async with slowdown() as times_slower, anyio.create_task_group() as tasks:
        tasks.start_soon(watched.watch)
        with anyio.fail_after(_SECONDS):
            await shared_out(clients, jobs)
        watched.look()
        tasks.cancel_scope.cancel()
    ends = await _ends(up.world.anvil, up, first)
    paces = ends.paces(jobs)
    if paces is None and jobs < MOST_JOBS:
        return await measured(up, clients, 2 * jobs, slots, further)
    if paces is None:
        raise RuntimeError(f"{jobs} jobs settled within too few blocks for {PARTS} parts")
    seconds, fullest = watched.looks[-1].at - watched.looks[0].at, ends.fullest(BLOCK_GAS_LIMIT)
    return Taken(jobs, seconds, paces, watched.slices(), times_slower(), fullest, watched.most)


@attrs.frozen
class _Look:
    at: float
    cpu: dict[str, float]  # seconds of each process so far


@attrs.define
class Watched:
    """Processes during a batch, and the largest share of the slots in use of the requested model, from the provider's
    metrics."""

    url: str
    slots: int
    pids: dict[str, int]
    most: float = 0.0
    looks: list[_Look] = attrs.field(factory=list)

    async def watch(self) -> None:
        self.look()
        async with httpx.AsyncClient(trust_env=False, timeout=_SECONDS) as http:
            while True:
                told = _values((await http.get(self.url)).text)
                granted = told["svcd_capacity_granted"]
                held = min(granted, self.slots * len(MODELS)) - told["svcd_capacity_free"]
                self.most = max(self.most, held / min(granted, self.slots))
                await anyio.sleep(_LOOK_EVERY)
                self.look()

    def look(self) -> None:
        """Sample the processes. All were started from this process, so the rest of its CPU is the clients'."""
        *each, ours = cpu_of(*self.pids.values(), os.getpid())
        cpu = dict(zip(self.pids, each, strict=True)) | {"client": ours - sum(each)}
        self.looks.append(_Look(time.monotonic(), cpu))

    def spent(self) -> dict[str, float]:
        """Return the CPU seconds of each process between the first and the last look."""
        first, last = self.looks[0], self.looks[-1]
        return {name: last.cpu[name] - first.cpu[name] for name in last.cpu}

    def slices(self) -> list[dict[str, float]]:
        """Return the CPU of each process in equal parts of time, from the nearest samples."""
        first, last = self.looks[0], self.looks[-1]
        ends = [first.at + (last.at - first.at) * part / PARTS for part in range(PARTS + 1)]
        marks = [min(self.looks, key=lambda look: abs(look.at - end)) for end in ends]
        return [{name: after.cpu[name] - before.cpu[name] for name in after.cpu} for before, after in pairwise(marks)]


def _values(metrics: str) -> Mapping[str, float]:
    rows = (line.rsplit(" ", 1) for line in metrics.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in rows}


async def _ends(anvil: Anvil, up: Devnet, first: int) -> Ends:
    last = int(await anvil.call("eth_blockNumber"), 16)
    topic = "0x" + event_topic(load("JobRegistry"), "JobSettled").hex()
    blocks: list[tuple[int, int, int]] = []
    for number in range(first, last + 1):
        block: dict[str, Any] = await anvil.call("eth_getBlockByNumber", hex(number), False)
        logs = await anvil.call(
            "eth_getLogs",
            {"fromBlock": hex(number), "toBlock": hex(number), "address": up.world.market.jobs, "topics": [topic]},
        )
        blocks.append((int(block["timestamp"], 16), len(logs), int(block["gasUsed"], 16)))
    return Ends(blocks)


async def _measure(jobs: int, slots: int, on: Ground) -> tuple[Taken, Taken, Taken]:
    """Measure with default settings, with this many slots, and with two of each daemon."""
    url = on.coordinator.base_url
    async with on.provided() as up, customer(up, url) as client:
        default = await measured(up, [client], JOBS_BY_DEFAULT, DEFAULT_SLOTS, {})
    async with on.provided(slots) as up, customer(up, url) as client:
        one = await measured(up, [client], jobs, slots, {})
        async with second(up, slots) as (other, further), customer(up, other) as another:
            return default, one, await measured(up, [client, another], int(jobs * OF_TWO), slots, further)


def rows(jobs: int = JOBS, slots: int = SLOTS) -> list[Row]:
    default, one, two = WORLD.run(partial(_measure, jobs, slots))
    for what, batch in (("default settings", default), ("whole market", one), ("with two of each daemon", two)):
        said = f"{batch.jobs / batch.seconds:.0f} jobs/s overall; ms of CPU a job: {batch.each}"
        print(f"{what}: {said}; used up: {batch.limit}", file=sys.stderr)
    tuned, by_slots = f"{slots} slots, all else as by default", DEFAULT_SLOTS / 2
    return [
        Row.of(
            f"jobs settled a second, whole market, default settings ({DEFAULT_SLOTS} slots)",
            default.paces,
            "jobs/s",
            f"{by_slots:g}/s: each slot for two blocks",
            by_slots,
            target=OF_SLOTS,
            by=mean,
        ),
        Row.of(
            f"jobs settled a second, whole market, {tuned}",
            one.paces,
            "jobs/s",
            f"{TARGET:g}/s",
            TARGET,
            target=1,
            absolute="clock",
            by=mean,
        ),
        Row.of(
            f"CPU of the whole market per job, {tuned}",
            one.cpu_a_job,
            "ms",
            f"{CPU_LIMIT:g} ms",
            CPU_LIMIT,
            at_most=1,
            absolute="CPU",
            by=mean,
        ),
        Row.of(
            f"jobs per CPU second of the busiest of two coordinators and two providers, {tuned}",
            two.busiest,
            "jobs/s",
            "the busiest of one of each",
            harmonic_mean(one.busiest),
            target=GROWTH,
            by=harmonic_mean,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.market")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--slots", type=int, default=SLOTS)
    chosen = parser.parse_args()
    for row in rows(chosen.jobs, chosen.slots):
        print(f"{row.name}: {row.value:.0f} {row.unit}, {row.ratio:.2f}; against {row.against}")


if __name__ == "__main__":
    main()
