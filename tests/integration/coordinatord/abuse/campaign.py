"""A market of running processes in which honest jobs go on while every attack is run at once, and what came of both."""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs
import httpx

from coordinatord.config import Config, read_config
from devnet.accounts import Wallet
from devnet.catalogue import MODELS
from devnet.ports import pick_free
from devnet.world import World
from svc.client import Client
from svc.wire.transport import REQUEST_SECONDS
from tests.abuse.hoarding import JunkFiles
from tests.abuse.pictures import Pictures
from tests.abuse.sockets import IdleConnections, OddMessages, SilentBodies
from tests.abuse.spending import PostsAndCancels, PostsOnOneBalance, UnwantedOrders, Upkeep, UploadedBatch
from tests.abuse.target import Attack, Target
from tests.faults.bomb_server import BombServer, bomb_server
from tests.faults.rpc_proxy import Rewrite, rpc_proxy
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import environment
from tests.soak.answering import answers_ok
from tests.soak.daemon import Daemon
from tests.soak.plain_http import plain_http
from tests.soak.programs import ORIGIN, RATE_IN, RATE_OUT, SLA_SECONDS, provider_program
from tests.soak.timeline import Timeline

_ABSURD_TIP: Final = hex(5 * 10**12)  # 5,000 gwei
_ABSURD_TIPS: Final = (
    Rewrite("eth_maxPriorityFeePerGas", lambda _params, _tip: _ABSURD_TIP),
    Rewrite(
        "eth_feeHistory",
        lambda _params, history: {**history, "reward": [[_ABSURD_TIP] for _ in history["gasUsedRatio"]]},
    ),
)
UNDEFENDED: Final = "tests.abuse.undefended"
_EVERY_ORDER_IS_WANTED: Final = (
    "create or replace function meets_ask(provider bigint, model bigint, window_secs bigint, in_rate numeric,"
    " out_rate numeric) returns boolean language sql stable as 'select true'"
)
_READ: Final = ("/v1/models", "/evm/jobs?state=Open&limit=50", "/evm/providers?limit=50", "/evm/jobs?limit=50")
_PAUSE: Final = 0.05
Done = Callable[[], Awaitable[bool]]
_PATIENCE: Final = 30.0  # seconds for an honest job: its window is a minute


@attrs.define
class Times:
    """Seconds that each post, job (from the wish to its mined result) and read took those who are honest."""

    posts: list[float] = attrs.field(factory=list)
    jobs: list[float] = attrs.field(factory=list)
    reads: list[float] = attrs.field(factory=list)


@attrs.define
class Honest:
    """Who buys one job after the other and opens its result, and looks around meanwhile."""

    base_url: str
    world: World
    wallet: Wallet
    gateways: tuple[str, ...]
    bought: set[bytes] = attrs.field(factory=set)

    async def go_on_until(self, enough: anyio.Event, times: Times) -> None:
        """At least one job, however long it takes."""
        async with (
            plain_http(self.base_url, timeout=REQUEST_SECONDS) as pool,
            Client(
                self.base_url,
                http=pool,
                wallet_key=self.wallet.private_key,
                gateways=self.gateways,
                addresses=address_book(self.world),
                environment={},
            ) as client,
            anyio.create_task_group() as reading,
        ):
            reading.start_soon(self._read, pool, times)
            await self._buy(client, times)
            while not enough.is_set():
                await self._buy(client, times)
            reading.cancel_scope.cancel()

    async def _buy(self, client: Client, times: Times) -> None:
        question = f"What is {secrets.token_hex(16)}?"
        began = time.monotonic()
        prepared = await client.prepare(
            MODELS[0].name, question, window=f"{SLA_SECONDS}s", rate_in=RATE_IN, rate_out=RATE_OUT
        )
        submitted = await client.submit(prepared)
        assert submitted.mined
        times.posts.append(time.monotonic() - began)
        self.bought.add(bytes.fromhex(prepared.id[2:]))
        job = await client.wait(prepared.id, timeout=_PATIENCE)
        assert job.status == "completed", f"{prepared.id} is {job.status}"
        times.jobs.append(time.monotonic() - began)
        assert question in str((await client.open(prepared.id)).output)

    async def _read(self, pool: httpx.AsyncClient, times: Times) -> None:
        for path in cycle(_READ):
            began = time.monotonic()
            answer = await pool.get(path)
            times.reads.append(time.monotonic() - began)
            assert answer.status_code == 200, f"{path} was answered {answer.status_code}"
            await anyio.sleep(_PAUSE)


@attrs.define
class Attacks:
    """One of each kind that this market can be met with."""

    target: Target
    upkeep: Upkeep
    one_balance: PostsOnOneBalance
    cancels: PostsAndCancels
    batch: UploadedBatch
    unwanted: UnwantedOrders
    junk: JunkFiles
    silent: SilentBodies
    idle: IdleConnections
    odd: OddMessages
    pictures: Pictures

    @classmethod
    def on(cls, target: Target, provider_id: int) -> "Attacks":
        return cls(
            target,
            Upkeep(target),
            PostsOnOneBalance(target),
            PostsAndCancels(target),
            UploadedBatch(target),
            UnwantedOrders(target, provider_id),
            JunkFiles(target),
            SilentBodies(target),
            IdleConnections(target),
            OddMessages(target),
            Pictures(target),
        )

    def __iter__(self) -> Iterator[Attack]:
        values = attrs.asdict(self, recurse=False)
        return (attack for name, attack in values.items() if name != "target")

    async def run_until(self, enough: anyio.Event) -> None:
        async with anyio.create_task_group() as striking:
            for attack in self:
                striking.start_soon(self._again, attack, enough)

    async def _again(self, attack: Attack, enough: anyio.Event) -> None:
        n, timeline = 0, self.target.timeline
        while not enough.is_set():
            since = timeline.now
            try:
                outcome = await attack.strike(n)
            except httpx.TransportError as gone:
                outcome = type(gone).__name__
            timeline.finished(attack.name, since, outcome)
            n += 1
            await anyio.sleep(_PAUSE)


@attrs.define
class Campaign:
    """The market, and what came of it: `alone` and `beside` are what the honest saw without and with attacks."""

    world: World
    coordinator: Coordinator
    provider: Daemon
    config: Config
    attacks: Attacks
    connection: "asyncpg.Connection[asyncpg.Record]"
    bombs: BombServer
    buyers: list[Honest]
    alone: Times = attrs.field(factory=Times)
    beside: Times = attrs.field(factory=Times)
    _before: int = 0  # the coordinator's memory when it was first attacked

    async def quiet(self, seconds: float) -> None:
        await self._go_on(seconds, self.alone, None)

    async def attacked(self, seconds: float, *, at_most: float | None = None, until: Done | None = None) -> None:
        """`until`: what must have come of it; for that the attacks go on for longer, `at_most` so long."""
        self._before = self._before or self.coordinator.resident_bytes()
        await self._go_on(seconds, self.beside, self.attacks, at_most, until)

    async def _go_on(
        self,
        seconds: float,
        times: Times,
        attacks: Attacks | None,
        at_most: float | None = None,
        until: Done | None = None,
    ) -> None:
        enough = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for buyer in self.buyers:
                tasks.start_soon(buyer.go_on_until, enough, times)
            if attacks is not None:
                tasks.start_soon(attacks.run_until, enough)
            await anyio.sleep(seconds)
            if until is not None:
                with anyio.move_on_after((at_most or seconds) - seconds):
                    while not await until():  # noqa: ASYNC110 - the event is in other processes
                        await anyio.sleep(_PAUSE)
            enough.set()

    @property
    def bought(self) -> set[bytes]:
        return {job for buyer in self.buyers for job in buyer.bought}

    @property
    def timeline(self) -> Timeline:
        return self.attacks.target.timeline

    @property
    def grown_bytes(self) -> int:
        """Of the coordinator's memory, since before the first attack."""
        return self.coordinator.resident_bytes() - self._before

    @property
    def provider_bytes(self) -> int:
        """The most that its memory ever was."""
        status = Path(f"/proc/{self.provider.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def settings_of(world: World, database_url: str, rpc_url: str, settings: Mapping[str, object]) -> dict[str, str]:
    """As operators run it, with limits of a caller: none of them is raised for tests here."""
    given = environment(world, database_url, ESCROW_MODE="static", OPERATOR_KEY="0x" + "5e" * 32, CORS_ORIGINS=ORIGIN)
    for raised in ("REQUESTS_PER_SECOND", "REQUESTS_BURST", "CONNECTIONS_PER_CALLER", "UPLOADS_PER_CALLER"):
        del given[raised]
    return {**given, "RPC_URL": rpc_url, **{name: str(value) for name, value in settings.items()}}


@asynccontextmanager
async def campaign(
    world: World,
    database_url: str,
    folder: Path,
    settings: Mapping[str, object],
    *,
    buying: int = 0,
    defended: bool = True,
) -> AsyncIterator[Campaign]:
    """The node advises an absurd tip all the time, and says that it was paid; the gateway that buyers and the provider
    ask first answers with bombs. `defended=False`: without the defences that no setting switches off."""
    port, metrics_port = pick_free(), pick_free()
    async with AsyncExitStack() as stack:
        bombs = stack.enter_context(bomb_server())
        rpc = await stack.enter_async_context(rpc_proxy(world.anvil.rpc_url))
        stack.enter_context(rpc.fault(*_ABSURD_TIPS))
        given = settings_of(world, database_url, rpc.url, settings)
        serving = ("coordinatord",) if defended else (UNDEFENDED, "cancels", "coordinatord")
        coordinator = await stack.enter_async_context(running(given, port, pick_free(), program=serving))
        connection = await asyncpg.connect(database_url)
        stack.push_async_callback(connection.close)
        if not defended:
            await connection.execute(_EVERY_ORDER_IS_WANTED)
        gateways = (bombs.url, world.pins.gateway)
        program = provider_program(
            "provider",
            world.cast.demo_provider,
            folder=folder / "provider",
            coordinator=coordinator.base_url,
            gateway='", "'.join(gateways),
            metrics_port=metrics_port,
            logs=folder,
            clock=folder / "clock",
        )
        if not defended:
            python, module, *rest = program.command
            program = attrs.evolve(program, command=(python, module, UNDEFENDED, "bombs", *rest))
        provider = Daemon(program, answers_ok(f"http://127.0.0.1:{metrics_port}/healthz"))
        stack.push_async_callback(provider.kill)
        await provider.start()
        await provider.until_ready()
        patron = world.cast.with_role("client")[3].address
        target = Target([coordinator.base_url], world.anvil, address_book(world), patron, Timeline())
        provider_id = world.market.provider_ids[world.cast.demo_provider.address]
        yield Campaign(
            world,
            coordinator,
            provider,
            read_config(given),
            Attacks.on(target, provider_id),
            connection,
            bombs,
            [
                Honest(coordinator.base_url, world, wallet, gateways)
                for wallet in world.cast.with_role("client")[:buying]
            ],
        )
