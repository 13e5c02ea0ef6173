"""One run: coordinators, buyers and providers, with all events decided by the plan."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import structlog

from common.domains import Domains
from svc.client import Client
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.simulation.coordinator.actors import BatchOwner, Buyer, Provider, Told
from tests.simulation.coordinator.chain import BLOCK_SECONDS, SimulatedChain, Token
from tests.simulation.coordinator.clocks import clocks_of
from tests.simulation.coordinator.daemon import SimulatedDaemon
from tests.simulation.coordinator.faults import Faults
from tests.simulation.coordinator.ground import Ground
from tests.simulation.coordinator.lives import Coordinator, Front, Life, in_place_of_the_world
from tests.simulation.coordinator.loop import SimulatedLoop
from tests.simulation.coordinator.postgres import Request, Session, SimulatedServer
from tests.simulation.coordinator.promises import Promises
from tests.simulation.coordinator.purchases import Purchase
from tests.simulation.coordinator.store import SimulatedStore
from tests.simulation.coordinator.ways import COORDINATOR, GATEWAY, Ways
from tests.simulation.coordinator.wire import Address, ControlConnection
from tests.simulation.determinism import seeded
from tests.simulation.disk import empty_folder
from tests.simulation.plan import OF_SVCD, Fault, Kill, Plan
from tests.simulation.trace import Trace

_QUIET_TIMEOUT_S: Final = 500.0  # after the last fault, for all work to end
_PROVIDERS: Final = 2
_HTTP_TIMEOUT_S: Final = 3600.0  # never reached, because the simulation controls delays


@attrs.frozen
class Outcome:
    plan: Plan
    trace: str
    broken: tuple[str, ...]
    jobs: int
    opened: int  # settled results that a client opened
    lives: int
    faults: int
    seconds: float
    statements: int
    lines: tuple[str, ...]


def simulate(plan: Plan, ground: Ground) -> Outcome:
    database_url = ground.renewed()
    loop = SimulatedLoop(plan.seed)

    def moment(what: str) -> None:
        run.moment(what)

    with empty_folder() as disk, _quiet(), seeded(plan.seed, moment), clocks_of(loop.time):
        asyncio.set_event_loop(loop)
        try:
            run = _Run(plan, ground, database_url, loop, disk)
            loop.run_until_complete(run.play())
            return run.outcome()
        finally:
            asyncio.set_event_loop(None)
            loop.close()


class _Run:
    def __init__(self, plan: Plan, ground: Ground, database_url: str, loop: SimulatedLoop, disk: Path) -> None:
        self.plan, self.ground, self.loop = plan, ground, loop
        self._disk = disk
        self.daemon: SimulatedDaemon | None = None
        self.trace = Trace(loop.time)
        self.faults = Faults(plan, self.trace)
        self.told = Told()
        self._url = database_url
        self._book = ground.config(database_url, 0).addresses
        self._ordering: list[asyncio.Task[None]] = []
        self._chance = random.Random(f"run {plan.seed}")
        address = Address.of(database_url.partition("?")[0])
        self.admin = ControlConnection(address)
        self.server = SimulatedServer(loop, address, self.admin, plan.seed)
        self.server.executed = self._executed
        self.server.trouble = self._trouble
        self.server.admits = lambda owner: self.faults.is_live(owner) and not self._databases_away
        self.store = SimulatedStore(self.faults, plan.seed)
        self._databases_away = 0
        self._kills = sorted((kill for kill in plan.kills if kill.of != OF_SVCD), key=lambda kill: kill.at)
        self._steps = 0
        self.coordinators: list[Coordinator] = []
        loop.stepped = self._stepped

    async def play(self) -> None:
        plan, ground = self.plan, self.ground
        self.chain = SimulatedChain(ground.node, self.faults, ground.relayers(), plan.seed)
        self.promises = Promises(ground, self._url, self.admin, self.told, chain=self.chain, store=self.store)
        self.chain.broadcast = self.promises.before_broadcast
        self.chain.mined = self.promises.at_a_block
        with in_place_of_the_world(self.loop, self.server, self.chain, self.store, self.faults):
            self.coordinators = [
                Coordinator(f"c{n}", ground.config(self._url, n), plan.seed) for n in range(plan.coordinators)
            ]
            tasks = [asyncio.create_task(self._alone(one.run())) for one in self.coordinators]
            tasks += [asyncio.create_task(self._alone(part)) for part in (self.chain.mine(), self._weather())]
            ways = Ways(Front(self.coordinators, self.faults, plan.seed), self.store, self.faults)
            async with (
                httpx.AsyncClient(transport=ways, base_url=COORDINATOR, timeout=_HTTP_TIMEOUT_S) as http,
                self._svcd(ways),
            ):
                self._ordering = [asyncio.create_task(self._alone(part)) for part in self._buyers(http)]
                actors = [*self._ordering, *(asyncio.create_task(self._alone(part)) for part in self._providers(http))]
                await self._until_rest()
                for task in [*actors, *tasks]:
                    task.cancel()
                await asyncio.wait([*actors, *tasks])
            for one in self.coordinators:
                self.promises.breaks(*await one.end())
        self.promises.breaks(*self.told.failures)

    @asynccontextmanager
    async def _svcd(self, ways: Ways) -> AsyncIterator[None]:
        """Run svcd if the plan has one."""
        if not self.plan.has_svcd:
            yield
            return
        self.daemon = SimulatedDaemon(
            self.loop,
            self.plan,
            self.ground,
            ways,
            self._disk,
            told=self.told,
            trace=self.trace,
            index=self.promises.rows,
        )
        with self.daemon.running():
            yield
            await self.daemon.end()
        self.promises.breaks(*self.daemon.promises.broken)

    def moment(self, what: str) -> None:
        if self.daemon is not None:
            self.daemon.moment(what)

    def outcome(self) -> Outcome:
        self.admin.close()
        return Outcome(
            self.plan,
            self.trace.digest,
            tuple(self.promises.broken),
            len(self.told.posted),
            sum(self.told.opened.values()),
            sum(one.lives for one in self.coordinators) + (0 if self.daemon is None else self.daemon.life),
            self.faults.met,
            self.loop.time(),
            self.server.statements,
            tuple(self.trace.lines),
        )

    # --- participants ---

    def _buyers(self, http: httpx.AsyncClient) -> Iterator[Coroutine[Any, Any, None]]:
        for number, post in enumerate(self.plan.posts):
            if post.sealed:
                yield self._purchase(http, number).buy(number, post)
            elif post.lines:
                owner = BatchOwner(**self._actor(http, "client", 3))
                yield owner.order(post, self._book.chain_id)
            else:
                buyer = Buyer(**self._actor(http, "client", number % 3))
                changes = post.at < self.plan.noisy and self._chance.random() < 0.15
                yield buyer.buy(post, changes_its_mind=changes)

    def _providers(self, http: httpx.AsyncClient) -> Iterator[Coroutine[Any, Any, None]]:
        for number in range(int(self.plan.has_svcd), _PROVIDERS):  # svcd, if present, is the first
            actor = self._actor(http, "provider", number)
            yield Provider(**actor, early=number == 0, forgets=self._forgets).run()

    def _purchase(self, http: httpx.AsyncClient, number: int) -> Purchase:
        assert self.daemon is not None
        client = Client(
            http=http,
            wallet_key=wallet_of(self.ground.wallets.with_role("client")[number % 3]),
            gateways=GATEWAY,
            addresses=self._book,
            known_markets=None,
            environment={},
        )
        chance = random.Random(f"purchase {number} {self.plan.seed}")
        return Purchase(client, self.daemon.provider_id, self.told, self.trace, chance, self.promises.breaks)

    def _actor(self, http: httpx.AsyncClient, role: str, number: int) -> dict[str, Any]:
        account = self.ground.wallets.with_role(role)[number]
        return {
            "party": Party(wallet_of(account), Domains.of(self._book), self._book.job_registry, http, account.box_key),
            "told": self.told,
            "trace": self.trace,
            "chance": random.Random(f"{role} {number} {self.plan.seed}"),
            "role": role,
            "only": self._only,
        }

    @property
    def _only(self) -> int:
        """Return the provider that small buyers use. svcd could not read their orders."""
        second = self.ground.wallets.with_role("provider")[1]
        return self.ground.market.provider_ids[second.address] if self.plan.has_svcd else 0

    def _forgets(self) -> bool:
        return self.loop.time() < self.plan.noisy and self._chance.random() < 0.1

    async def _alone(self, part: Coroutine[Any, Any, None]) -> None:
        """Run a part. A failure is reported at the end, and does not stop other parts."""
        try:
            await part
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.promises.breaks(f"the simulation itself fell: {error!r}")
            logging.getLogger(__name__).exception("a part of the simulation fell")

    # --- faults ---

    def _stepped(self) -> None:
        """Maybe kill a process, after any step of any task."""
        if not self._kills or self.loop.time() < self._kills[0].at:
            return
        if self._steps < self._kills[0].step:
            self._steps += 1
            return
        kill, self._steps = self._kills.pop(0), 0
        self._die(kill)

    def _die(self, kill: Kill) -> None:
        one = self.coordinators[kill.of % len(self.coordinators)]
        if one.life is None:
            return
        self.trace.add(f"{kill.how} of {one.life.name}")
        self.faults.met += 1
        if kill.how == "stop":
            one.stop()
            return
        life = one.life
        one.kill()
        for session in list(self.server.sessions.values()):
            if session.owner is life:
                session.lost()

    def _trouble(self, session: Session, request: Request) -> str | None:
        if not isinstance(session.owner, Life):
            return None
        fault = self.faults.due("statement")
        if fault is None and request.text.startswith("COMMIT"):
            fault = self.faults.due("commit")
        if fault is not None:
            self.trace.add(f"session {session.number} is cut {fault.kind}: {request.text[:40]}")
        return None if fault is None else fault.kind

    def _executed(self, session: Session, request: Request) -> None:
        self.trace.add(f"{session.number} {session.status} {' '.join(request.text.split())[:50]}: {request.tag}")

    async def _weather(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for fault in self.faults.weather:
                tasks.create_task(self._passes(fault))

    async def _passes(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        self.trace.add(f"{fault.place} {fault.kind}")
        self.faults.met += 1
        chain = self.chain
        match fault.place:
            case "reorg":
                chain.reorganise(fault, self.ground.floor)
            case "outside":
                chain.used_outside()
            case "shut_out":
                account = self._chance.choice(self.ground.wallets.with_role("provider")[:_PROVIDERS]).address
                token = Token(self.ground.market.token, self.ground.wallets.admin.address)
                await chain.shut_out(account, token, fault.seconds, self.plan.noisy)
            case "node_away":
                chain.away += 1
                await asyncio.sleep(fault.seconds)
                chain.away -= 1
            case "blocks":
                chain.still += 1
                await asyncio.sleep(fault.seconds)
                chain.still -= 1
            case "fees":
                chain.fees_rise()
                await asyncio.sleep(fault.seconds)
                chain.fees_fall()
            case "database_away":
                self._databases_away += 1
                for session in list(self.server.sessions.values()):
                    session.lost()
                await asyncio.sleep(fault.seconds)
                self._databases_away -= 1

    # --- the end ---

    async def _until_rest(self) -> None:
        await asyncio.sleep(self.plan.noisy + 2 * BLOCK_SECONDS)
        while not (all(one.done() for one in self._ordering) and self._at_rest()):
            if self.loop.time() > self.plan.noisy + _QUIET_TIMEOUT_S:
                break
            await asyncio.sleep(BLOCK_SECONDS)
        await asyncio.sleep(5 * BLOCK_SECONDS)
        if self.daemon is not None:
            self.daemon.judge()
            await self.daemon.end()
            await asyncio.sleep(5 * BLOCK_SECONDS)
        self.chain.still += 1
        await asyncio.sleep(5 * BLOCK_SECONDS)
        await self.promises.judge(self.plan.noisy)

    def _at_rest(self) -> bool:
        return self.promises.at_rest() and (self.daemon is None or self.daemon.at_rest)


@contextmanager
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)  # of pools with an unreachable database
    try:
        yield
    finally:
        structlog.reset_defaults()
