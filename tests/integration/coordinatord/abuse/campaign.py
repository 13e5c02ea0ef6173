"""A market of running processes with honest jobs, while all attacks run at once, and its measurements."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs
import httpx

from coordinatord.run.config import Config
from devnet.catalogue import MODELS
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.scene.running import PROGRAM, Coordinator, running
from tests.integration.coordinatord.scene.stage import environment
from tests.soak.answering import answers_ok
from tests.soak.programs import ORIGIN, RATE_IN, RATE_OUT, SLA_SECONDS, Daemon, provider_program
from tests.soak.timeline import Timeline
from tests.support.attacks.hoarding import JunkFiles
from tests.support.attacks.honest import HonestProcess, RepeatedOrder, Times, honest_process
from tests.support.attacks.pictures import Pictures
from tests.support.attacks.sockets import IdleConnections, OddMessages, SilentBodies
from tests.support.attacks.spending import PostsAndCancels, PostsOnOneBalance, UnwantedOrders, Upkeep, UploadedBatch
from tests.support.attacks.target import Attack, Target
from tests.support.coordinator import VARIABLE, config_of
from tests.support.faults.bomb_server import BombServer, bomb_server
from tests.support.faults.rpc_proxy import Rewrite, rpc_proxy

_ABSURD_TIP: Final = hex(5 * 10**12)  # 5,000 gwei
_ABSURD_TIPS: Final = (
    Rewrite("eth_maxPriorityFeePerGas", lambda _params, _tip: _ABSURD_TIP),
    Rewrite(
        "eth_feeHistory",
        lambda _params, history: {**history, "reward": [[_ABSURD_TIP] for _ in history["gasUsedRatio"]]},
    ),
)
UNDEFENDED: Final = "tests.support.attacks.undefended"
_EVERY_ORDER_IS_WANTED: Final = (
    "create or replace function meets_ask(provider bigint, model bigint, window_secs bigint, in_rate numeric,"
    " out_rate numeric) returns boolean language sql stable as 'select true'"
)
_PAUSE: Final = 0.05
Done = Callable[[], Awaitable[bool]]


@attrs.define
class Attacks:
    """One attack of each kind."""

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
    """The market and its measurements: `alone` is honest traffic without attacks, `beside` is honest traffic during
    attacks."""

    world: World
    coordinator: Coordinator
    provider: Daemon
    config: Config
    attacks: Attacks
    connection: "asyncpg.Connection[asyncpg.Record]"
    bombs: BombServer
    honest: HonestProcess
    alone: Times = attrs.field(factory=Times)
    beside: Times = attrs.field(factory=Times)
    _before: int = 0  # the coordinator's memory before the first attack

    async def settle_first_jobs(self, jobs: int) -> None:
        """Let every honest buyer settle this many jobs, so that none is a newcomer afterwards."""
        await self.honest.go(jobs)
        await self.honest.stop(Times())

    async def quiet(self, seconds: float) -> None:
        await self._go_on(seconds, self.alone, None)

    async def attacked(self, seconds: float, *, at_most: float | None = None, until: Done | None = None) -> None:
        """Run attacks. Continue beyond `seconds` until `until` is true, for `at_most` seconds."""
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
        await self.honest.go(1)
        async with anyio.create_task_group() as tasks:
            if attacks is not None:
                tasks.start_soon(attacks.run_until, enough)
            await anyio.sleep(seconds)
            if until is not None:
                with anyio.move_on_after((at_most or seconds) - seconds):
                    while not await until():  # noqa: ASYNC110 - the event is in other processes
                        await anyio.sleep(_PAUSE)
            await self.honest.stop(times)
            enough.set()

    @property
    def bought(self) -> set[bytes]:
        return self.honest.bought

    @property
    def timeline(self) -> Timeline:
        return self.attacks.target.timeline

    @property
    def grown_bytes(self) -> int:
        """Return the growth of the coordinator's memory since before the first attack."""
        return self.coordinator.resident_bytes() - self._before

    @property
    def provider_bytes(self) -> int:
        """Return the provider's peak memory."""
        status = Path(f"/proc/{self.provider.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def settings_of(world: World, database_url: str, rpc_url: str, settings: Mapping[str, object]) -> dict[str, str]:
    """Use an operator's settings, with default limits per caller."""
    given = environment(world, database_url, ESCROW_MODE="static", OPERATOR_KEY="0x" + "5e" * 32, CORS_ORIGINS=ORIGIN)
    del given["REQUESTS_PER_SECOND"]
    limits = {name: value for name, value in settings.items() if name.islower()}
    variables = {name: str(value) for name, value in settings.items() if name.isupper()}
    return {**given, "RPC_URL": rpc_url, VARIABLE: json.dumps(limits), **variables}


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
        serving = (PROGRAM,) if defended else (UNDEFENDED, "cancels", PROGRAM)
        coordinator = await stack.enter_async_context(running(given, port, pick_free(), program=serving))
        connection = await asyncpg.connect(database_url)
        stack.push_async_callback(connection.close)
        if not defended:
            await connection.execute(_EVERY_ORDER_IS_WANTED)
        gateways = (bombs.url, world.pins.gateway)
        program = provider_program(
            "provider",
            world.wallets.demo_provider,
            folder=folder / "provider",
            coordinator=coordinator.base_url,
            gateways=gateways,
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
        patron = world.wallets.with_role("client")[3].address
        target = Target([coordinator.base_url], world.anvil, address_book(world), patron, Timeline())
        provider_id = world.market.provider_ids[world.wallets.demo_provider.address]
        keys = [wallet.private_key for wallet in world.wallets.with_role("client")[:buying]]
        wish = RepeatedOrder(MODELS[0].name, f"{SLA_SECONDS}s", RATE_IN, RATE_OUT)
        honest = await stack.enter_async_context(
            honest_process(coordinator.base_url, gateways, world.market.address_book, keys, wish)
        )
        yield Campaign(
            world,
            coordinator,
            provider,
            config_of(given),
            Attacks.on(target, provider_id),
            connection,
            bombs,
            honest,
        )
