from collections.abc import Callable
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from tests.support.fakes.market import START, Market

T = TypeVar("T")


def _run_in_virtual_time(main: partial[Any], clock: None, instruments: list[trio.abc.Instrument]) -> Any:
    return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=instruments)


in_virtual_time = pytest.mark.trio(run=_run_in_virtual_time)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, obj: Any) -> None:
    """Run async tests on trio in virtual time. A test that is marked for trio has real time and real threads."""
    marks = [*collector.iter_markers(), *getattr(obj, "pytestmark", ())]
    if iscoroutinefunction(obj) and not any(mark.name == "trio" for mark in marks):
        in_virtual_time(obj)


@pytest.fixture(autouse=True)
def inline_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run thread work inline, because the virtual clock would jump forward while a thread works."""
    mark = request.node.get_closest_marker("trio")
    if mark is None or "run" not in mark.kwargs:
        return

    async def run_sync(act: Callable[..., T], *arguments: Any, **_: object) -> T:
        await trio.lowlevel.checkpoint()
        return act(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
def market() -> Market:
    return Market(lambda: START + trio.current_time())
