"""Real clients (`svc.client.Client`). Each buys jobs of the real svcd and opens the results."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import attrs

from svc.client import Client
from svc.errors import JobFailed, ResultTakenBack, ResultUnreadable, SvcError, WaitTimedOut
from svc.results import Result
from tests.simulation.coordinator.actors import Told
from tests.simulation.coordinator.daemon import MODEL, RATES
from tests.simulation.plan import Post
from tests.simulation.trace import Trace

T = TypeVar("T")
_STEP_TIMEOUT_S: Final = 240.0
_RESULT_TIMEOUT_S: Final = 330.0  # for a result and its block
_UNLIMITED: Final = 10**9


@attrs.define
class Purchase:
    """`breaks` is called with responses to a different request."""

    client: Client
    provider_id: int
    told: Told
    trace: Trace
    chance: random.Random
    breaks: Callable[[str], None]

    async def buy(self, number: int, post: Post) -> None:
        await asyncio.sleep(post.at)
        client, text = self.client, f"question {number} " * (1 + post.length // 11)
        bid: dict[str, Any] = {"rate_in": RATES.rate_in, "rate_out": RATES.rate_out}
        if not post.is_bid:
            bid["provider"] = self.provider_id
        prepared = await self._insist(
            "prepare", lambda: client.prepare(MODEL, text, window=f"{post.window}s", units_out=1000, **bid)
        )
        if prepared is None:
            return
        job, named = prepared.id, self.told.named(prepared.id)
        self.told.ordered[job] = post.at
        self.told.sealed.add(job)
        final = self.chance.random() < 0.3
        submitted = await self._insist(
            f"submit of {named}", lambda: client.submit(prepared, max_amount=_UNLIMITED, final=final)
        )
        if submitted is None:
            return
        self.trace.add(f"{named} is submitted, and rests on a {submitted.rests_on}")
        self.told.posted[job] = asyncio.get_running_loop().time()
        if submitted.mined:
            self.told.promised.add(job)
        try:
            found = await client.first_result(prepared, timeout=_RESULT_TIMEOUT_S)
            result = found if isinstance(found, Result) else await client.open(found)
            self._judge(job, text, result)
            if result.provisional:
                result = await client.settled(result, timeout=_RESULT_TIMEOUT_S)
                self._judge(job, text, result)
            self.told.settled[job] = asyncio.get_running_loop().time()
        except (JobFailed, ResultTakenBack) as ended:
            self.trace.add(f"{named} failed: {ended.code}")
        except WaitTimedOut:
            self.trace.add(f"{named} timed out")
            await self._insist(f"cancel of {named}", lambda: client.cancel(job))

    def _judge(self, job: str, text: str, result: Result) -> None:
        self.trace.add(f"{self.told.named(job)} is opened, {'provisional' if result.provisional else 'settled'}")
        output = result.output
        if not isinstance(output, dict) or output.get("input") != text:
            self.breaks(f"{self.told.named(job)} got an answer to another request")
        self.told.opened[job] = not result.provisional

    async def _insist(self, what: str, act: Callable[[], Awaitable[T]]) -> T | None:
        """Return None if refused, or if no conclusive response came in time."""
        loop = asyncio.get_running_loop()
        until, said = loop.time() + _STEP_TIMEOUT_S, "nothing"
        while loop.time() < until:
            try:
                return await act()
            except SvcError as failed:
                said = f"{type(failed).__name__} {failed.code} {str(failed)[:160]}"
                if not (failed.retryable or isinstance(failed, ResultUnreadable) or failed.code == "outcome_unknown"):
                    break
            await asyncio.sleep(self.chance.uniform(0.5, 4))
        self.trace.add(f"{what}: {said}")
        self.told.refused.append(f"{what}: {said}")
        return None
