"""The stages as a whole daemon, on a virtual clock, against a market in memory."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from tests.fakes.market import START, Market
from tests.unit.svcd.stages.running import Running, running

T = TypeVar("T")
Start = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture(autouse=True)
def threads_run_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps when every task waits would jump while a thread works."""

    async def run_sync(act: Callable[..., T], *arguments: Any, **_: object) -> T:
        await trio.lowlevel.checkpoint()
        return act(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
def market(autojump_clock: MockClock) -> Market:
    return Market(lambda: START + autojump_clock.current_time())


@pytest.fixture
def start(market: Market, tmp_path: Path) -> Start:
    """`async with start(...) as running`: a daemon until the block ends. Its state survives from one to the next."""

    def _start(**changed: Any) -> AbstractAsyncContextManager[Running]:
        return running(market, tmp_path / "state", **changed)

    return _start
