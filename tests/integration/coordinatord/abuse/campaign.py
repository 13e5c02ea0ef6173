"""A market of running processes in which honest jobs go on while every attack is run at once, and what came of both."""

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs
import httpx

from coordinatord.config import Config, read_config
from devnet.accounts import DevWallet
from devnet.catalogue import MODELS
from devnet.ports import pick_free
from devnet.world import World
from svc.client import Client
from svc.wire.transport import REQUEST_SECONDS
from tests.abuse.hoarding import JunkFiles
from tests.abuse.sockets import IdleConnections, SilentBodies
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
from tests.soak.programs import RATE_IN, RATE_OUT, SLA_SECONDS, provider_program
from tests.soak.timeline import Timeline

_ABSURD_TIP: Final = hex(5 * 10**14)  # what the node advises
_PAUSE: Final = 0.05
_PATIENCE: Final = 30.0  # seconds for an honest job: its window is a minute


@attrs.define
class Honest:
    """Who buys one job after the other and opens its result. `posts` and `jobs`: seconds that each took."""

    base_url: str
    world: World
    wallet: DevWallet
    gateways: tuple[str, ...]
    posts: list[float] = attrs.field(factory=list)
    jobs: list[float] = attrs.field(factory=list)
    bought: set[bytes] = attrs.field(factory=set)

    async def buy_until(self, enough: anyio.Event) -> None:
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
        ):
            while not enough.is_set():
                await self._buy(client)

    async def _buy(self, client: Client) -> None:
        question = f"What is {secrets.token_hex(16)}?"
        began = time.monotonic()
        prepared = await client.prepare(
            MODELS[0].name, question, window=f"{SLA_SECONDS}s", rate_in=RATE_IN, rate_out=RATE_OUT
        )
        submitted = await client.submit(prepared)
        assert submitted.mined
        self.posts.append(time.monotonic() - began)
        self.bought.add(bytes.fromhex(prepared.id[2:]))
        job = await client.wait(prepared.id, timeout=_PATIENCE)
        assert job.status == "completed", f"{prepared.id} is {job.status}"
        self.jobs.append(time.monotonic() - began)
        assert question in str((await client.open(prepared.id)).output)


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
    """What came of it; `baseline` and `meanwhile` are what the honest saw before and during the attacks."""

    world: World
    coordinator: Coordinator
    provider: Daemon
    config: Config
    attacks: Attacks
    connection: "asyncpg.Connection[asyncpg.Record]"
    bombs: BombServer
    baseline: list[Honest]
    meanwhile: list[Honest]
    grown_bytes: int = 0  # the coordinator's memory, from before the attacks until their end

    @property
    def timeline(self) -> Timeline:
        return self.attacks.target.timeline

    @property
    def provider_bytes(self) -> int:
        status = Path(f"/proc/{self.provider.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def settings_of(world: World, database_url: str, rpc_url: str, settings: Mapping[str, object]) -> dict[str, str]:
    """As operators run it, with limits of a caller: none of them is raised for tests here."""
    given = environment(world, database_url, ESCROW_MODE="static", OPERATOR_KEY="0x" + "5e" * 32)
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
    attacked: float,
    quiet: float = 0.0,
    buying: int = 0,
) -> AsyncIterator[Campaign]:
    """Yields when the attacks are over, while everything still runs. The node advises an absurd tip all the time, and
    the gateway that buyers and the provider ask first answers with bombs."""
    port, metrics_port = pick_free(), pick_free()
    async with AsyncExitStack() as stack:
        bombs = stack.enter_context(bomb_server())
        rpc = await stack.enter_async_context(rpc_proxy(world.anvil.rpc_url))
        stack.enter_context(rpc.fault(Rewrite("eth_maxPriorityFeePerGas", lambda _params, _tip: _ABSURD_TIP)))
        given = settings_of(world, database_url, rpc.url, settings)
        coordinator = await stack.enter_async_context(running(given, port, pick_free()))
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
        provider = Daemon(program, answers_ok(f"http://127.0.0.1:{metrics_port}/healthz"))
        stack.push_async_callback(provider.kill)
        await provider.start()
        await provider.until_ready()
        connection = await asyncpg.connect(database_url)
        stack.push_async_callback(connection.close)
        patron = world.cast.with_role("client")[3].address
        target = Target([coordinator.base_url], world.anvil, address_book(world), patron, Timeline())
        provider_id = world.market.provider_ids[world.cast.demo_provider.address]

        def buyers() -> list[Honest]:
            wallets = world.cast.with_role("client")[:buying]
            return [Honest(coordinator.base_url, world, wallet, gateways) for wallet in wallets]

        over = Campaign(
            world,
            coordinator,
            provider,
            read_config(given),
            Attacks.on(target, provider_id),
            connection,
            bombs,
            buyers(),
            buyers(),
        )
        await _for(quiet, over.baseline, None)
        before = coordinator.resident_bytes()
        await _for(attacked, over.meanwhile, over.attacks)
        over.grown_bytes = coordinator.resident_bytes() - before
        yield over


async def _for(seconds: float, buyers: list[Honest], attacks: Attacks | None) -> None:
    enough = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for buyer in buyers:
            tasks.start_soon(buyer.buy_until, enough)
        if attacks is not None:
            tasks.start_soon(attacks.run_until, enough)
        await anyio.sleep(seconds)
        enough.set()
