from collections.abc import Callable
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from tests.support.fakes.market import START, Market

T = TypeVar("T")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(obj: Any) -> None:
    """Run every async test of this folder on trio, in virtual time."""
    if iscoroutinefunction(obj):
        pytest.mark.trio(run=_run_in_virtual_time)(obj)


def _run_in_virtual_time(main: partial[Any], clock: None, instruments: list[trio.abc.Instrument]) -> Any:
    return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=instruments)


@pytest.fixture(autouse=True)
def inline_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run thread work inline, because the virtual clock would jump forward while a thread works."""

    async def run_sync(act: Callable[..., T], *arguments: Any, **_: object) -> T:
        await trio.lowlevel.checkpoint()
        return act(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
def market() -> Market:
    return Market(lambda: START + trio.current_time())
