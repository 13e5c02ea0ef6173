"""Requests to `svc serve`: CPU from a request's first byte to its posted job, and 200 concurrent requests shared by
three providers.

The market is a fake coordinator in the same process, so the figure includes its CPU and is an upper bound. The ledger
is on a disk. A request may take 30 ms of CPU.
"""

import json
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Final

import anyio
import anyio.lowlevel

from svc.serve.settings import BudgetSettings, ServeSettings
from tests.bench.row import Row
from tests.unit.svc.fake_coordinator import Answer, provider
from tests.unit.svc.serve.conftest import spoken
from tests.unit.svc.serve.market import Caller, ServedMarket, candidate

_CHAT: Final = "/v1/chat/completions"
_WARM, _COUNTED, _AT_A_TIME, _TURNS = 8, 16, 200, 3
_MOST_MS: Final = 30.0
_MOST_WHOLE_MS: Final = 60.0  # with looks, the result and the fake coordinator
_PROVIDERS: Final = (7, 8, 9)
_SECONDS: Final = 10.0
_SETTINGS: Final = ServeSettings(budget=BudgetSettings(per_day=10**18))


def _asked(number: int) -> dict[str, object]:
    return {
        "model": "demo/chat",
        "messages": [{"role": "user", "content": f"{number} " + "x" * 4096}],
        "max_tokens": 64,
    }


async def _posted_ms(market: ServedMarket, caller: Caller) -> list[float]:
    """CPU of each request, from its arrival until the coordinator has its job."""
    spent = []
    for number in range(_WARM + _COUNTED):
        posted = len(market.jobs)
        began = time.process_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.post, _CHAT, _asked(number))
            while len(market.jobs) == posted:
                await anyio.lowlevel.checkpoint()
            if number >= _WARM:
                spent.append((time.process_time() - began) * 1000)
    return spent


async def _together(market: ServedMarket, caller: Caller, turn: int) -> tuple[float, float]:
    """Return wall and CPU seconds for two hundred concurrent requests. Each must have a separate job."""
    heard: list[int] = []

    async def ask(number: int) -> None:
        heard.append((await caller.post(_CHAT, _asked(10_000 * turn + number))).status)

    before, began, used = len(market.jobs), time.monotonic(), time.process_time()
    async with anyio.create_task_group() as tasks:
        for number in range(_AT_A_TIME):
            tasks.start_soon(ask, number)
    if heard != [200] * _AT_A_TIME or len(market.jobs) - before != _AT_A_TIME:
        raise RuntimeError(
            f"of {_AT_A_TIME} requests {heard.count(200)} were answered, {len(market.jobs) - before} bought"
        )
    took, used = time.monotonic() - began, time.process_time() - used
    busy = {job.provider for job in market.jobs.values()}
    if busy != set(_PROVIDERS):
        raise RuntimeError(f"of the providers {_PROVIDERS} only {busy} had work")
    return took, used


async def _measured() -> tuple[list[float], list[tuple[float, float]]]:
    market = ServedMarket(spoken, steps=dict.fromkeys(_PROVIDERS, ("in_progress", "completed")))
    market.candidates = [candidate(number, 1_000_000 + number) for number in _PROVIDERS]
    for number in _PROVIDERS:
        told = provider(provider_id=str(number), capacity="5")
        market.coordinator.tell(f"GET /evm/providers/{number}", Answer(200, told))
    with tempfile.TemporaryDirectory() as folder:
        async with market.served(Path(folder), _SETTINGS) as caller:
            return await _posted_ms(market, caller), [
                await _together(market, caller, turn) for turn in range(1, _TURNS + 1)
            ]


def rows() -> list[Row]:
    """The figures of "Serving"."""
    spent, turns = anyio.run(_measured)
    seconds, each = [took for took, _ in turns], [used / _AT_A_TIME * 1000 for _, used in turns]
    posted = f"CPU of a {len(json.dumps(_asked(1))) >> 10} KiB request to svc serve, until it is posted"
    shared = f"CPU of one of {_AT_A_TIME} at a time, answered by one of three providers"
    return [
        Row.of(posted, spent, "ms", f"{_MOST_MS:g} ms", _MOST_MS, at_most=1, absolute="CPU", by=mean),
        Row.of(shared, each, "ms", f"{_MOST_WHOLE_MS:g} ms", _MOST_WHOLE_MS, at_most=1, absolute="CPU"),
        Row.of(
            f"{_AT_A_TIME} requests at a time, all answered",
            seconds,
            "s",
            f"{_SECONDS:g} s",
            _SECONDS,
            at_most=1,
            absolute="clock",
        ),
    ]
