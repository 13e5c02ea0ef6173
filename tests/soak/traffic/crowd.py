"""Clients of every kind. Each repeats its work until the run is over."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from random import Random
from typing import Final

import anyio
import attrs
import httpx

from svc.errors import SvcError
from tests.soak.ground import Ground
from tests.soak.options import Options
from tests.soak.timeline import Timeline
from tests.soak.traffic.batches import BatchWork, FileWork
from tests.soak.traffic.buyer import Buyer
from tests.soak.traffic.hooks import HookWork, Receiver, add_hooks
from tests.soak.traffic.hostile import Hostile
from tests.soak.traffic.operator import Operator
from tests.soak.traffic.readers import NonDeliveringProvider, Reader
from tests.soak.traffic.streams import StreamWork, TabWork
from tests.soak.traffic.work import Work, outcome_of
from tests.soak.useful import USEFUL
from tests.support.attacks.hoarding import JunkFiles
from tests.support.attacks.pictures import Pictures
from tests.support.attacks.sockets import IdleConnections, OddMessages, SilentBodies
from tests.support.attacks.spending import (
    FullBatches,
    PostsAndCancels,
    PostsOnOneBalance,
    UnwantedOrders,
    Upkeep,
    UploadedBatch,
)
from tests.support.attacks.target import Attack, Target

_PAUSE_S: Final = 0.3  # between two pieces of a client's work
_LONG_PAUSE_S: Final = 5.0  # after expensive pieces of work
_RARE_PAUSE_S: Final = 240.0  # between pieces of content that is kept for days
_SOLD_WITHIN: Final = 60.0
_BUYING_WALLETS: Final = 4  # of clients, see `_buyers`

Act = Callable[[int], Awaitable[str]]


@attrs.frozen(eq=False)
class Client:
    what: str
    act: Act
    pause: float = _PAUSE_S
    buyer: Buyer | None = None

    @property
    def at(self) -> str:
        return f"{self.what} ({self.buyer.doing})" if self.buyer is not None and self.buyer.doing else self.what


class Crowd:
    def __init__(self, ground: Ground, options: Options, timeline: Timeline, receiver: Receiver) -> None:
        self.hooks, self.streams = HookWork(receiver, timeline), StreamWork(timeline)
        self._ground, self._options, self._timeline = ground, options, timeline
        self._work = Work(ground, timeline)
        self._closing = anyio.Event()
        self._at_work: list[Client] = []

    @property
    def promised(self) -> set[bytes]:
        return self._work.promised

    @property
    def jobs(self) -> int:
        return self._work.jobs

    def end_round(self) -> None:
        self._work.end_round()

    async def run(self) -> None:
        """Run until every client has finished its work after `close`."""
        self._closing = anyio.Event()
        async with anyio.create_task_group() as clients:
            for client in (*self._buyers(), *self._others()):
                clients.start_soon(self._again, client)

    async def prepare(self) -> None:
        """Wait until every provider's asks are on the book, because earlier orders would fail without a fault. Then add
        a webhook for each buying wallet."""
        buyer = Buyer(self._ground, self._ground.wallets.with_role("client")[0], self._random("first"))
        with anyio.fail_after(_SOLD_WITHIN):
            while not await self._work.every_provider_sells(buyer):  # noqa: ASYNC110 - the event is in other processes
                await anyio.sleep(0.25)
        wallets = self._ground.wallets.with_role("client")[:_BUYING_WALLETS]
        await add_hooks(self.hooks, [Buyer(self._ground, wallet, self._random("hooks")) for wallet in wallets])

    @property
    def unfinished(self) -> list[str]:
        """Return unfinished clients with their current work."""
        return [client.at for client in self._at_work]

    def close(self) -> None:
        """Start no new work."""
        self._closing.set()

    def _buyers(self) -> Iterator[Client]:
        """Return the buyers, some of which share a wallet."""
        work, batches, files = self._work, BatchWork(self._timeline), FileWork(self._timeline)
        kinds: list[tuple[str, Callable[[Buyer], Awaitable[str]], int, int, float]] = [
            ("open job", work.open_job, 0, 4, _PAUSE_S),
            ("market job", work.market_job, 1, 3, _PAUSE_S),
            ("designated job", work.designated_job, 1, 1, _PAUSE_S),
            ("cancelled job", work.cancelled_job, 2, 1, _PAUSE_S),
            ("job posted twice", work.job_posted_twice, 2, 1, _PAUSE_S),
            ("uploaded job", work.uploaded_job, 3, 1, 1.0),
            ("large job", work.large_job, 3, 1, _RARE_PAUSE_S),
            ("quote", work.quoted, 0, 1, _PAUSE_S),
            ("batch", batches.batch, 3, 1, _PAUSE_S),
            ("cancelled batch", batches.cancelled_batch, 2, 1, _LONG_PAUSE_S),
            ("tab", TabWork(work, self._timeline).tab, 2, 2, _PAUSE_S),
            ("file", files.file, 1, 1, 1.0),
            ("event stream", self.streams.followed, 0, 2, _PAUSE_S),
            ("webhook test", self.hooks.tested, 0, 1, _PAUSE_S),
        ]
        wallets = self._ground.wallets.with_role("client")
        for what, act, wallet, how_many, pause in kinds:
            for n in range(how_many):
                name = f"{what}/{n}"
                buyer = Buyer(self._ground, wallets[wallet], self._random(name), name)
                yield Client(what, _acting(act, buyer), pause, buyer)

    def _others(self) -> Iterator[Client]:
        ground, timeline = self._ground, self._timeline
        hostile = Hostile(ground, timeline)
        yield Client("nonce twice", hostile.one_nonce_twice)
        yield Client("operator", Operator(ground).change, 1.0)
        yield Client("many sessions", hostile.many_sessions, _LONG_PAUSE_S)
        yield Client("outlived session", hostile.outlived_session, _LONG_PAUSE_S)
        yield Client("garbage", hostile.garbage)
        yield Client("no session", hostile.not_theirs)
        yield Client("reader", Reader(ground, timeline).look, 0.1)
        for attack, pause in self._attacks():
            yield Client(attack.name, attack.strike, pause)
        for n, wallet in enumerate(ground.strangers):
            provider = NonDeliveringProvider(ground, timeline, wallet, self._random(f"idle/{n}"))
            yield Client("idle provider", provider.poll, _LONG_PAUSE_S)

    def _attacks(self) -> "Iterator[tuple[Attack, float]]":
        """Return strangers who make others pay for gas, storage or memory."""
        ground = self._ground
        patron = ground.wallets.with_role("client")[0].address
        target = Target(ground.base_urls, ground.anvil, ground.book, patron, self._timeline)
        yield Upkeep(target), _PAUSE_S
        yield PostsOnOneBalance(target), _LONG_PAUSE_S
        yield PostsAndCancels(target), 2.0
        yield UploadedBatch(target, lines=200, wallet_lasts=20), 2.0
        yield UnwantedOrders(target, provider_id=1), 1.0
        yield JunkFiles(target, piece_bytes=9_000_000), 2.0
        yield SilentBodies(target, patience=12.0), _LONG_PAUSE_S
        yield IdleConnections(target), _LONG_PAUSE_S
        yield OddMessages(target), 1.0
        yield Pictures(target), _LONG_PAUSE_S
        yield FullBatches(target, at_once=40), 6 * _LONG_PAUSE_S

    def _random(self, name: str) -> Random:
        return Random(f"{self._options.seed}/{name}")  # noqa: S311 - to be foreseen is its purpose

    async def one_of_each(self) -> None:
        """Do each kind of useful work again, without faults. Each must succeed (I13)."""
        kinds = {client.what: client for client in self._buyers() if client.what in USEFUL}
        async with anyio.create_task_group() as clients:
            for client in kinds.values():
                clients.start_soon(self._until_done, client)

    async def _until_done(self, client: Client) -> None:
        met: list[str] = []
        patience = self._options.patience
        with anyio.move_on_after(patience):
            while not met or met[-1] not in USEFUL[client.what].done:
                if met:
                    await anyio.sleep(min(client.pause, _LONG_PAUSE_S))
                since = self._timeline.now
                met.append(await self._outcome(client, len(met)))
                self._timeline.finished(f"{client.what}, in quiet", since, met[-1])
            return
        self._timeline.complain(
            f"I13: no {client.what} finished within {patience:g} s after the last fault: {dict(Counter(met))},"
            f" now {client.at}"
        )

    async def _again(self, client: Client) -> None:
        self._at_work.append(client)
        for n in count():
            if self._closing.is_set():
                break
            since = self._timeline.now
            self._timeline.finished(client.what, since, await self._outcome(client, n))
            with anyio.move_on_after(client.pause):
                await self._closing.wait()
        self._at_work.remove(client)

    async def _outcome(self, client: Client, n: int) -> str:
        try:
            return await client.act(n)
        except SvcError as trouble:
            return outcome_of(trouble, self._timeline, client.what)
        except httpx.TransportError as gone:
            return type(gone).__name__
        except Exception as broken:
            self._timeline.complain(f"{client.what} broke off: {broken!r}")
            return "broke off"


def _acting(act: Callable[[Buyer], Awaitable[str]], buyer: Buyer) -> Act:
    return lambda _: act(buyer)
