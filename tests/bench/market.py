"""The whole market: jobs a second that are posted, claimed, run by echo, settled and opened, and what limits them.

A devnet as `make devnet` makes it, of real daemons with default settings, and one that differs in the provider's slots;
blocks of a second. A client buys batches of open lines: a first one, not counted, in which wallets earn their gas
budgets and the provider its capacity, and then those that are measured, with each process's CPU time before and after.

Then the same with a second coordinator, whose relayer has an account of its own, and a second provider behind it. All
share the cores that there are, so the pace tells nothing of it: CPU accounting does, by what the busiest daemon would
take with a core of its own.

    python -m tests.bench.market [--jobs 1000] [--slots 512]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import httpx

from common.artifacts import event_topic, load
from devnet.anvil import BLOCK_GAS_LIMIT, Anvil
from devnet.app import local_world
from devnet.catalogue import MODELS
from devnet.daemons import running_coordinator, running_provider
from devnet.ports import pick_free
from devnet.settings import SLOTS as DEFAULT_SLOTS
from devnet.settings import DevnetSettings
from devnet.world import Devnet
from svc.client import Client
from tests.bench.machine import cpu_of
from tests.bench.row import Row

JOBS: Final = 1_000  # of a batch: more than there are slots, so that the pace is no burst's
BATCHES: Final = 3
JOBS_BY_DEFAULT: Final = 200
FIRST: Final = 400
SLOTS: Final = 512
GROWTH: Final = 1.4  # times the jobs, with two of each daemon: what each does whatever comes is done twice
TARGET: Final = 80.0  # jobs a second
OF_SLOTS: Final = 0.5  # of what the default slots would settle if each were held for two blocks
CPU_LIMIT: Final = 50.0  # ms of all processes together; two cores take 25 for the pace that is aimed at
_RATES: Final = {"rate_in": 100_000, "rate_out": 200_000}  # what the devnet's provider asks for
_SECONDS: Final = 600.0
# A buyer's own, as it may bring one along: httpx looks at each connection for each request, which is most of what a
# result costs where there are many.
_CONNECTIONS: Final = httpx.Limits(max_connections=8)
_DAEMONS: Final = ("coordinatord", "svcd")
_GRACE: Final = 0.1  # of the jobs: those of the beginning and of the end are left out of the pace
_LOOK_EVERY: Final = (
    0.5  # seconds: a page of metrics costs the provider milliseconds, and a slot is held for two blocks
)


@attrs.frozen
class Ends:
    """When so many jobs had settled, by the chain."""

    blocks: list[tuple[int, int, int]]  # time, settles, gas used

    def pace(self, jobs: int) -> float:
        """Jobs settled a second, from when a tenth of them had to when a tenth had not."""
        low, high = jobs * _GRACE, jobs * (1 - _GRACE)
        done, reached = 0, {}
        for at, settles, _ in self.blocks:
            done += settles
            for mark in (low, high):
                if done >= mark and mark not in reached:
                    reached[mark] = (at, done)
        (began, first), (ended, last) = reached[low], reached[high]
        return (last - first) / max(1, ended - began)

    def fullest(self, limit: int) -> float:
        return max(gas for *_, gas in self.blocks) / limit


@attrs.frozen
class Taken:
    jobs: int
    seconds: float  # from the first post to the last result that was opened
    pace: float  # settled a second in between
    cpu: dict[str, float]  # seconds of each process
    gas: float  # share of the fullest block
    held: float  # share of the slots, at most

    @property
    def cores(self) -> float:
        return sum(self.cpu.values()) / self.seconds

    @property
    def busiest(self) -> float:
        """Jobs a second that the busiest daemon would take with a core of its own. The chain and the database have
        several processes or threads each, and a core does not bound them."""
        daemons = [seconds for name, seconds in self.cpu.items() if name.startswith(_DAEMONS)]
        return self.jobs / max(daemons)

    @property
    def each(self) -> str:
        """CPU a job of each process, in words."""
        return ", ".join(f"{name} {seconds / self.jobs * 1000:.1f}" for name, seconds in self.cpu.items())

    @property
    def limit(self) -> str:
        """What was used up, in words."""
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
        "pin store": up.world.pins.child.pid,
        "postgresql": up.world.postgres.child.pid,
        "coordinatord": up.coordinator.child.pid,
        "svcd": up.provider.child.pid,
    }


@asynccontextmanager
async def market(slots: int) -> AsyncIterator[Devnet]:
    with tempfile.TemporaryDirectory() as directory:
        ports = {name: pick_free() for name in ("rpc_port", "database_port", "pin_store_port", "api_port")}
        ports |= {name: pick_free() for name in ("metrics_port", "provider_metrics_port")}
        settings = DevnetSettings(state_dir=Path(directory) / "devnet", slots=slots, **ports)
        async with local_world(settings, lambda said: print(said, file=sys.stderr)) as up:
            yield up


@asynccontextmanager
async def second(up: Devnet, slots: int) -> AsyncIterator[dict[str, int]]:
    """Another coordinator over the same database, with the other relayer account, and another provider behind it: the
    ids of their processes."""
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
            yield {"coordinatord 2": coordinator.child.pid, "svcd 2": provider.child.pid}


@asynccontextmanager
async def customer(up: Devnet) -> AsyncIterator[Client]:
    url, gateway = up.coordinator.base_url, up.world.pins.gateway
    key = up.world.cast.with_role("client")[0].private_key
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, limits=_CONNECTIONS) as http,
        Client(url, http=http, wallet_key=key, gateways=gateway, environment={}) as client,
    ):
        yield client


async def bought(client: Client, jobs: int) -> None:
    """A batch of open lines, each opened; raises where one came back otherwise than it should."""
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


async def measured(up: Devnet, jobs: int, slots: int, further: Mapping[str, int], first: int = FIRST) -> list[Taken]:
    async with customer(up) as client:
        await bought(client, first)
        watched = {**processes(up), **further, "client": os.getpid()}
        return [await _batch(up, client, jobs, slots, watched) for _ in range(BATCHES)]


async def _batch(up: Devnet, client: Client, jobs: int, slots: int, watched: Mapping[str, int]) -> Taken:
    before = {name: cpu_of(pid) for name, pid in watched.items()}
    before["client"] -= sum(seconds for name, seconds in before.items() if name != "client")
    first = int(await up.world.anvil.call("eth_blockNumber"), 16) + 1
    held = _Held(up.provider.metrics_url, slots)
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(held.watch)
        with anyio.fail_after(_SECONDS):
            await bought(client, jobs)
        tasks.cancel_scope.cancel()
    seconds = time.monotonic() - began
    after = {name: cpu_of(pid) for name, pid in watched.items()}
    after["client"] -= sum(spent for name, spent in after.items() if name != "client")
    ends = await _ends(up.world.anvil, up, first)
    cpu = {name: after[name] - before[name] for name in watched}
    return Taken(jobs, seconds, ends.pace(jobs), cpu, ends.fullest(BLOCK_GAS_LIMIT), held.most)


@attrs.define
class _Held:
    """The largest share of the slots of its one model that is asked for that the provider held, as its metrics tell."""

    url: str
    slots: int
    most: float = 0.0

    async def watch(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=_SECONDS) as http:
            while True:
                told = _values((await http.get(self.url)).text)
                granted = told["svcd_capacity_granted"]
                held = min(granted, self.slots * len(MODELS)) - told["svcd_capacity_free"]
                self.most = max(self.most, held / min(granted, self.slots))
                await anyio.sleep(_LOOK_EVERY)


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


async def _measure(jobs: int, slots: int) -> tuple[list[Taken], list[Taken], list[Taken]]:
    """With default settings, with so many slots, and with two of each daemon."""
    async with market(DEFAULT_SLOTS) as up:
        default = await measured(up, JOBS_BY_DEFAULT, DEFAULT_SLOTS, {}, JOBS_BY_DEFAULT)
    async with market(slots) as up:
        one = await measured(up, jobs, slots, {})
        async with second(up, slots) as further:
            return default, one, await measured(up, jobs, slots, further)


def rows(jobs: int = JOBS, slots: int = SLOTS) -> list[Row]:
    default, taken, by_two = anyio.run(_measure, jobs, slots)
    for what, found in (("default settings", default), ("whole market", taken), ("with two of each daemon", by_two)):
        for batch in found:
            said = f"{batch.jobs / batch.seconds:.0f} jobs/s overall; ms of CPU a job: {batch.each}"
            print(f"{what}: {said}; used up: {batch.limit}", file=sys.stderr)
    all_cpu = [sum(batch.cpu.values()) / batch.jobs * 1000 for batch in taken]
    paces, alone = [batch.pace for batch in taken], [batch.busiest for batch in taken]
    tuned, by_slots = f"{slots} slots, all else as by default", DEFAULT_SLOTS / 2
    return [
        Row.of(
            f"jobs settled a second, whole market, default settings ({DEFAULT_SLOTS} slots)",
            [batch.pace for batch in default],
            "jobs/s",
            f"{by_slots:g}/s: each slot for two blocks",
            by_slots,
            target=OF_SLOTS,
        ),
        Row.of(
            f"jobs settled a second, whole market, {tuned}",
            paces,
            "jobs/s",
            f"{TARGET:g}/s",
            TARGET,
            target=1,
            absolute=True,
        ),
        Row.of(
            f"CPU of the whole market per job, {tuned}",
            all_cpu,
            "ms",
            f"{CPU_LIMIT:g} ms",
            CPU_LIMIT,
            at_most=1,
            absolute=True,
        ),
        Row.of(
            f"jobs per CPU second of the busiest of two coordinators and two providers, {tuned}",
            [batch.busiest for batch in by_two],
            "jobs/s",
            "the busiest of one of each",
            statistics.median(alone),
            target=GROWTH,
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
