"""CPU per request as coordinator processes are added: 1, 2, 4 and 8 of them over one PostgreSQL.

More processes need more cores, but the machines of these benchmarks have two. So instead of throughput, CPU time of the
processes and of PostgreSQL is measured, which is about the same with more cores, for a read, an empty poll, a
submission and an event sent to a stream. The same load is spread evenly.

The first process holds the roles: it relays and indexes. If there are others, it gets no submissions, so its CPU is
that of the single writer. Its one core is the limit that more processes do not raise. It is compared with the posts
that fit in a chain of 60 M gas blocks every two seconds.
"""

import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import attrs
import httpx

from common.address_book import AddressBook
from common.domains import Domains
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.rpc.client import open_rpc
from devnet import accounts
from devnet.anvil import running_anvil
from devnet.app import deploy_market
from devnet.ports import LOOPBACK, pick_free
from devnet.postgres import running_postgres
from devnet.world import World
from tests.bench.http_processes import Ask, load_client
from tests.bench.row import Row
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import environment
from tests.support.cid_store import running_cid_store
from tests.support.cpu_times import cpu_of
from tests.support.fakes.budgets import UNLIMITED
from tests.support.fakes.submissions import Body, Submitter
from tests.support.services import rooms

PROCESSES: Final = (1, 2, 4, 8)
SAMPLES: Final = 3
# Per sample. The kernel counts CPU in hundredths of a second, so a sample takes about a second.
READS: Final = 20_000
POLLS: Final = 8_000
POSTS: Final = 200
STREAMED_POSTS: Final = 64
CONNECTIONS: Final = 64  # to all processes together
STREAMS: Final = 1_280  # of all processes together
IDLE_SECONDS: Final = 2
BLOCK_SECONDS: Final = 1
CHAIN_SECONDS: Final = 2
POSTS_A_BLOCK: Final = 1_024  # of 60 M gas
IDLE, READ, POLL = "idle second", "read of a job", "empty poll"
SUBMISSION, EVENT = "submission", "event sent to a stream"
RETRY_AFTER_S: Final = 0.2
MAX_CPU_RATIO: Final = 3.0  # to the CPU with one process
_JOB_ID_LENGTH: Final = 66
_UNASKED_MODEL: Final = 2  # has no jobs
_SAMPLE_TIMEOUT_S: Final = 120.0


@attrs.frozen
class Cost:
    """Seconds of CPU per unit: of all coordinators together, of the first alone, and of PostgreSQL."""

    coordinators: float
    first: float
    postgres: float

    @classmethod
    def middle(cls, costs: Sequence["Cost"]) -> "Cost":
        return cls(*(statistics.median(values) for values in zip(*map(attrs.astuple, costs), strict=True)))

    def without(self, other: "Cost", units: int) -> "Cost":
        """Subtract one unit of other work for this many units."""
        return Cost(
            self.coordinators - other.coordinators / units,
            self.first - other.first / units,
            self.postgres - other.postgres / units,
        )


@attrs.frozen
class Found:
    """Samples of each kind of work with this many processes."""

    processes: int
    work: dict[str, list[Cost]]

    def writer(self) -> list[float]:
        """Return CPU seconds of the roles' holder per op, while the others serve the submissions."""
        return [cost.first for cost in self.work[SUBMISSION]]


@attrs.define
class Scene:
    """The market and the running coordinators."""

    world: World
    settings: dict[str, str]
    load: Ask
    submitter: Submitter
    log: int
    stack: AsyncExitStack
    coordinators: list[Coordinator] = attrs.field(factory=list)

    async def grow(self, processes: int) -> None:
        async with anyio.create_task_group() as starts:
            for _ in range(processes - len(self.coordinators)):
                starts.start_soon(self._add)

    async def _add(self) -> None:
        running_one = running(self.settings, pick_free(), pick_free(), errors=self.log)
        self.coordinators.append(await self.stack.enter_async_context(running_one))

    @property
    def ports(self) -> list[int]:
        return [one.port for one in self.coordinators]

    async def costs(self, work: Callable[[], Awaitable[int]], rest: Cost) -> Cost:
        """Return CPU per unit of the work, which returns its number of units. `rest` is the CPU of an idle second,
        subtracted."""
        pids = [one.process.pid for one in self.coordinators]
        began, before = time.monotonic(), cpu_of(*pids, self.world.postgres.child.pid)
        with anyio.fail_after(_SAMPLE_TIMEOUT_S):
            units = await work()
        after, seconds = cpu_of(*pids, self.world.postgres.child.pid), time.monotonic() - began
        *used, postgres = (late - early for late, early in zip(after, before, strict=True))
        return Cost(
            (sum(used) - rest.coordinators * seconds) / units,
            (used[0] - rest.first * seconds) / units,
            (postgres - rest.postgres * seconds) / units,
        )

    async def idle(self) -> int:
        await anyio.sleep(IDLE_SECONDS)
        return IDLE_SECONDS

    async def requests(self, portion: int, path: str, bearer: str = "") -> int:
        ask = self.load(self.ports, path, CONNECTIONS // len(self.ports), bearer, portion)
        return await anyio.to_thread.run_sync(ask)

    async def submissions(self, bodies: Sequence[Body]) -> int:
        """Post all at once, rotating over processes without roles, and wait until each is in a block."""

        async def post(http: httpx.AsyncClient, body: Body) -> None:
            answer = await http.post("/v1/jobs", json=body)
            while answer.headers.get("x-svc-retryable") == "true":
                await anyio.sleep(RETRY_AFTER_S)
                answer = await http.post("/v1/jobs", json=body)
            answer.raise_for_status()

        async with AsyncExitStack() as clients, anyio.create_task_group() as posts:
            https = [
                await clients.enter_async_context(httpx.AsyncClient(base_url=one.base_url, trust_env=False, timeout=60))
                for one in self.coordinators[1:] or self.coordinators
            ]
            for number, body in enumerate(bodies):
                posts.start_soon(post, https[number % len(https)], body)
        return len(bodies)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["_EventCounts"]:
        """Open event streams, spread over the processes."""
        ears = _EventCounts()
        async with anyio.create_task_group() as readers:
            for number in range(STREAMS):
                await readers.start(ears.listen, self.ports[number % len(self.ports)])
            yield ears
            readers.cancel_scope.cancel()


@attrs.define
class _EventCounts:
    """Number of streams that have received each job."""

    heard: Counter[str] = attrs.field(factory=Counter)
    _grown: anyio.Event = attrs.field(factory=anyio.Event)

    async def listen(self, port: int, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with await anyio.connect_tcp(LOOPBACK, port) as stream:
            await stream.send(b"GET /evm/events HTTP/1.1\r\nhost: bench\r\n\r\n")
            rest = await stream.receive()
            assert rest.startswith(b"HTTP/1.1 200"), rest
            task_status.started()
            while True:
                *lines, rest = (rest + await stream.receive()).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        self.heard[line.partition(b'"job_id":"')[2][:_JOB_ID_LENGTH].decode()] += 1
                self._grown.set()

    async def all_receive(self, scene: Scene, bodies: Sequence[Body]) -> int:
        """Post, and wait until each stream has received each job. Return the number of events sent."""
        await scene.submissions(bodies)
        while any(self.heard[body["job_id"]] < STREAMS for body in bodies):
            self._grown = anyio.Event()
            await self._grown.wait()
        return STREAMS * len(bodies)


@asynccontextmanager
async def _scene() -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory() as name, load_client() as load:
        directory, wallets = rooms(Path(name)), accounts.derive_wallets()
        async with (
            running_anvil(pick_free(), directory / "anvil", directory) as anvil,
            running_postgres(pick_free(), directory / "postgres", directory) as postgres,
            running_cid_store(pick_free(), directory / "pins", directory) as pins,
            AsyncExitStack() as stack,
        ):
            market = await deploy_market(anvil, wallets)
            world = World(anvil, pins, postgres, wallets, market)
            book = AddressBook.parse(json.dumps(market.address_book).encode())
            more = {"RELAY_MAX_DEPTH": 4096, "LOG_LEVEL": "warning", "event_listeners_per_caller": STREAMS}
            client = wallets.with_role("client")[0]
            async with open_rpc(anvil.rpc_url) as rpc:
                terms = await JobRegistry(rpc, book.job_registry).read_fees()
            wallet = wallet_of(client)
            registry = book.job_registry
            submitter = Submitter(wallet, Domains.of(book), book.chain_id, registry, terms, client.box_key)
            log = stack.enter_context((directory / "coordinators.log").open("wb")).fileno()
            settings = environment(world, postgres.url(), **UNLIMITED, **more, BLOCK_TIME_MS=1000 * BLOCK_SECONDS)
            await anvil.mine_every(BLOCK_SECONDS)
            yield Scene(world, settings, load, submitter, log, stack)


async def _measured() -> list[Found]:
    found, began = [], time.monotonic()
    async with _scene() as scene:
        await scene.grow(1)
        job = scene.submitter.line()
        await scene.submissions([job])
        reads = partial(scene.requests, READS, f"/v1/jobs/{job['job_id']}")
        path = f"/evm/jobs?state=Open&model={_UNASKED_MODEL}&free=4"
        polls = partial(scene.requests, POLLS, path, await _provider_token(scene))
        for processes in PROCESSES:
            await scene.grow(processes)
            submit, rest = scene.submissions, Cost(0, 0, 0)
            await scene.submissions(scene.submitter.lines(POSTS // 2))  # opens connections, which takes CPU
            idle = [await scene.costs(scene.idle, rest) for _ in range(SAMPLES)]
            rest = Cost.middle(idle)
            work = {
                IDLE: idle,
                READ: [await scene.costs(reads, rest) for _ in range(SAMPLES)],
                POLL: [await scene.costs(polls, rest) for _ in range(SAMPLES)],
                SUBMISSION: [await _submitted(scene, POSTS, submit, rest) for _ in range(SAMPLES)],
            }
            alone = Cost.middle(work[SUBMISSION])
            async with scene.listening() as ears:
                hear = partial(ears.all_receive, scene)
                heard = [await _submitted(scene, STREAMED_POSTS, hear, rest) for _ in range(SAMPLES)]
            work[EVENT] = [cost.without(alone, STREAMS) for cost in heard]
            found.append(Found(processes, work))
            print(f"{time.monotonic() - began:.0f} s: {found[-1]}", flush=True)  # into build/bench.log
    return found


async def _submitted(scene: Scene, posts: int, submit: Callable[[Sequence[Body]], Awaitable[int]], rest: Cost) -> Cost:
    bodies = scene.submitter.lines(posts)
    return await scene.costs(partial(submit, bodies), rest)


async def _provider_token(scene: Scene) -> str:
    """Return the session of a provider without any jobs."""
    wallet = scene.world.wallets.with_role("provider")[0]
    base_url = scene.coordinators[0].base_url
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=30) as http:
        domains, registry = scene.submitter.domains, scene.submitter.registry
        provider = Party(wallet_of(wallet), domains, registry, http, wallet.box_key)
        await provider.sign_in("provider")
        return provider.token


def rows() -> list[Row]:
    found = anyio.run(_measured, backend_options={"use_uvloop": True})
    one = found[0]
    rows = []
    for kind in (IDLE, READ, POLL, SUBMISSION, EVENT):
        for part in ("coordinators", "postgres") if kind in (POLL, SUBMISSION) else ("coordinators",):
            base = statistics.median(_microseconds(one, kind, part))
            rows += [
                Row.of(
                    f"{kind}, {each.processes} processes, CPU of {part}",
                    _microseconds(each, kind, part),
                    "µs",
                    "one process",
                    base,
                    at_most=MAX_CPU_RATIO,
                )
                for each in found
            ]
    return rows + [
        Row.of(
            f"ops that a core of the roles' holder relays and indexes in a second, {each.processes} processes",
            [1 / seconds for seconds in each.writer()],
            "ops/s",
            f"posts that a block of 60 M gas has room for, a block each {CHAIN_SECONDS} s",
            POSTS_A_BLOCK / CHAIN_SECONDS,
            target=1,
        )
        for each in found[1:]
    ]


def _microseconds(found: Found, kind: str, part: str) -> list[float]:
    """Return CPU per unit. An idle second is that of one process."""
    shared = found.processes if kind == IDLE and part == "coordinators" else 1
    return [getattr(cost, part) / shared * 1e6 for cost in found.work[kind]]
