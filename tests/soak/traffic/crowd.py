"""Clients of every kind, each doing its piece of work again and again until the run is over."""

from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from typing import Final

import anyio
import httpx

from svc.errors import SvcError
from tests.soak.ground import Ground
from tests.soak.options import Options
from tests.soak.timeline import Timeline
from tests.soak.traffic.buyer import Buyer
from tests.soak.traffic.hostile import garbage, not_theirs, one_nonce_twice
from tests.soak.traffic.work import Work, outcome_of

_OPEN, _MARKET, _CANCELLED, _BATCHES = 4, 3, 1, 1  # clients of each kind at once
_PAUSE: Final = 0.3


class Crowd:
    def __init__(self, ground: Ground, options: Options, timeline: Timeline) -> None:
        self._ground, self._options, self._timeline = ground, options, timeline
        self._work = Work(ground, timeline)
        self._closing = anyio.Event()

    @property
    def promised(self) -> set[bytes]:
        return self._work.promised

    async def run(self) -> None:
        """Returns when every client has finished what it was at after `close`."""
        ground, work = self._ground, self._work
        wallets = ground.cast.with_role("client")
        kinds: list[tuple[str, Callable[[Buyer], Awaitable[str]], int, int]] = [
            ("open job", work.open_job, 0, _OPEN),
            ("market job", work.market_job, 1, _MARKET),
            ("cancelled job", work.cancelled_job, 2, _CANCELLED),
            ("batch", work.batch, 3, _BATCHES),
        ]
        async with anyio.create_task_group() as clients:
            for what, act, wallet, how_many in kinds:
                for n in range(how_many):
                    random = Random(f"{self._options.seed}/{what}/{n}")  # noqa: S311 - to be foreseen is its purpose
                    clients.start_soon(self._again, what, self._acting(act, Buyer(ground, wallets[wallet], random)))
            clients.start_soon(self._again, "nonce twice", lambda _: one_nonce_twice(ground, self._timeline))
            clients.start_soon(self._again, "garbage", lambda n: garbage(ground, self._timeline, n))
            clients.start_soon(self._again, "no session", lambda n: not_theirs(ground, self._timeline, n))

    def close(self) -> None:
        """Begin nothing new."""
        self._closing.set()

    async def until_enough(self, seconds: float) -> None:
        until = anyio.current_time() + seconds
        while anyio.current_time() < until and not 0 < self._options.jobs <= len(self.promised):  # noqa: ASYNC110 - the time has no event
            await anyio.sleep(0.2)

    def _acting(self, act: Callable[[Buyer], Awaitable[str]], buyer: Buyer) -> Callable[[int], Awaitable[str]]:
        return lambda _: act(buyer)

    async def _again(self, what: str, act: Callable[[int], Awaitable[str]]) -> None:
        for n in count():
            if self._closing.is_set():
                return
            since = self._timeline.now
            try:
                outcome = await act(n)
            except SvcError as trouble:
                outcome = outcome_of(trouble, self._timeline, what)
            except httpx.TransportError as gone:
                outcome = type(gone).__name__
            self._timeline.finished(what, since, outcome)
            with anyio.move_on_after(_PAUSE):
                await self._closing.wait()
