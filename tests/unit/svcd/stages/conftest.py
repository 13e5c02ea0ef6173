"""Fixtures for a whole daemon on a virtual clock, with a market in memory."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import structlog
from trio.testing import MockClock

from tests.support.fakes.market import START, Market
from tests.unit.svcd.stages.running import Running, running

Start = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture(autouse=True)
def in_virtual_time(inline_threads: None) -> None:
    """Run every test of this folder in virtual time."""


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Without configuration, structlog prints tracebacks with the locals of every frame."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def market(autojump_clock: MockClock) -> Market:
    return Market(lambda: START + autojump_clock.current_time())


@pytest.fixture
def start(market: Market, tmp_path: Path) -> Start:
    """`async with start(...) as running` runs a daemon until the block ends. Its state survives until the next
    start."""

    def _start(**changed: Any) -> AbstractAsyncContextManager[Running]:
        return running(market, tmp_path / "state", **changed)

    return _start
