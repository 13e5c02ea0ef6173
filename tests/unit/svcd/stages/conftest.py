"""Fixtures for a whole daemon, with a market in memory."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.support.fakes.market import Market
from tests.unit.svcd.stages.running import Running, running

Start = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Without configuration, structlog prints tracebacks with the locals of every frame."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def start(market: Market, tmp_path: Path) -> Start:
    """`async with start(...) as running` runs a daemon until the block ends. Its state survives until the next
    start."""

    def _start(**changed: Any) -> AbstractAsyncContextManager[Running]:
        return running(market, tmp_path / "state", **changed)

    return _start
