"""Scenes without blocks: requests wait while a test inspects their effects."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import httpx

from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.stage import Stage

POLL = "/evm/jobs?state=Open&model=1&free=1"


class Outcome:
    """Response to a request that runs in a task."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._answer: httpx.Response | None = None

    def hear(self, answer: httpx.Response) -> None:
        self._answer = answer
        self._done.set()

    @property
    def is_there(self) -> bool:
        return self._answer is not None

    async def get(self) -> httpx.Response:
        with anyio.fail_after(20):
            await self._done.wait()
        assert self._answer is not None
        return self._answer


class Running:
    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks

    def start(self, ask: Callable[[], Awaitable[httpx.Response]]) -> Outcome:
        outcome = Outcome()

        async def run() -> None:
            outcome.hear(await ask())

        self._tasks.start_soon(run)
        return outcome


@asynccontextmanager
async def no_blocks(stage: Stage) -> AsyncIterator[Running]:
    """Mine only by hand. Requests that still run at the end are cancelled."""
    async with mining_by_hand(stage.world.anvil), anyio.create_task_group() as tasks:
        yield Running(tasks)
        tasks.cancel_scope.cancel()


def polling(
    who: Party, more: str = "&pending=1&wait=20", http: httpx.AsyncClient | None = None
) -> Callable[[], Awaitable[httpx.Response]]:
    return lambda: (http or who.http).get(POLL + more, headers=who.authorization)


def posting(who: Party, body: Body) -> Callable[[], Awaitable[httpx.Response]]:
    return lambda: who.http.post("/v1/jobs", json=body)


def claiming(who: Party, job: str) -> Callable[[], Awaitable[httpx.Response]]:
    return lambda: who.http.post("/evm/ops", json=who.claim(job), headers=who.authorization)


async def until_true(look: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(15):
        while not await look():  # noqa: ASYNC110 - the table tells nobody
            await anyio.sleep(0.02)


async def mined_again(stage: Stage) -> None:
    """Mine a block, and from now on one for each transaction."""
    await stage.world.anvil.call("evm_setAutomine", True)
    await stage.world.anvil.call("evm_mine")
