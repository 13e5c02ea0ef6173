"""What clients do over and over: each piece returns how it ended, and complains of what must not happen."""

import secrets
import time
from random import Random
from typing import Any, Final

import anyio
import attrs

from devnet.catalogue import MODELS
from svc.core.orders import PreparedOrder
from svc.errors import ApiError, ConnectionFailed, JobFailed, ResultUnreadable, SvcError
from tests.soak.ground import Ground
from tests.soak.programs import RATE_IN, RATE_OUT, SLA_SECONDS
from tests.soak.timeline import Timeline
from tests.soak.traffic.buyer import Buyer

_TEXT: Final = MODELS[0].name
_WINDOW: Final = f"{SLA_SECONDS}s"
_LINES: Final = (5, 20)
_UNREADABLE_FOR: Final = 60.0  # a gateway that is away comes back


@attrs.define
class Work:
    """What all clients share. `promised`: jobs whose post was answered 201."""

    ground: Ground
    timeline: Timeline
    promised: set[bytes] = attrs.field(factory=set)

    async def open_job(self, buyer: Buyer) -> str:
        """To whoever claims it, sealed to the escrow."""
        return await self._bought(buyer, {"rate_in": RATE_IN, "rate_out": RATE_OUT})

    async def market_job(self, buyer: Buyer) -> str:
        """To the cheapest who is live, sealed to it."""
        return await self._bought(buyer, {})

    async def cancelled_job(self, buyer: Buyer) -> str:
        """Below every ask, so that nobody claims it; taken back."""
        async with buyer.anywhere() as client:
            prepared = await client.prepare(_TEXT, _question(), window=_WINDOW, rate_in=1, rate_out=1)
            await self._post(buyer, prepared)
        job_id = prepared.id
        async with buyer.anywhere() as client:
            await client.cancel(job_id)
        async with buyer.anywhere() as client:
            job = await client.wait(job_id, timeout=120)
        return job.status

    async def batch(self, buyer: Buyer) -> str:
        """Some lines with rates, for all, and some that the plan gives away."""
        count = buyer.random.randint(*_LINES)
        lines = [_line(n, buyer.random) for n in range(count)]
        async with buyer.anywhere() as client:
            prepared = await client.batches.prepare(lines, window="1h")
            batch = await client.batches.create(prepared)
        while not batch.ended:
            await anyio.sleep(1)
            try:
                async with buyer.anywhere() as client:
                    batch = await client.batches.get(batch.id)
            except SvcError as trouble:
                if not trouble.retryable:
                    raise
        if batch.status == "completed" and batch.request_counts.total != count:
            self.timeline.complain(f"I6: batch {batch.id} has {batch.request_counts.total} of {count} lines")
        return batch.status

    async def _bought(self, buyer: Buyer, rates: dict[str, Any]) -> str:
        question = _question()
        async with buyer.anywhere() as client:
            prepared = await client.prepare(_TEXT, question, window=_WINDOW, **rates)
        await self._post(buyer, prepared)
        job_id = prepared.id
        async with buyer.anywhere() as client:
            job = await client.wait(job_id)
        if job.status != "completed":
            return job.status
        return await self._opened(buyer, job_id, question)

    async def _post(self, buyer: Buyer, prepared: PreparedOrder) -> None:
        """Until it is posted: the same order again is the same job."""
        since = self.timeline.now
        while True:
            try:
                async with buyer.anywhere() as client:
                    await client.submit(prepared)
            except SvcError as trouble:
                if not may_come_again(trouble):
                    raise
                await anyio.sleep(0.5)
                continue
            self.promised.add(prepared.sealed_order.job_id)
            self.timeline.finished("post", since, "ok")
            return

    async def _opened(self, buyer: Buyer, job_id: str, question: str) -> str:
        until = time.monotonic() + _UNREADABLE_FOR
        while True:
            try:
                async with buyer.anywhere() as client:
                    result = await client.open(job_id)
                break
            except (ResultUnreadable, ApiError, ConnectionFailed) as trouble:
                if time.monotonic() > until:
                    self.timeline.complain(f"I7: the result of {job_id} cannot be had: {trouble.code} {trouble}")
                    return "unreadable"
                await anyio.sleep(1)
        if question not in str(result.output):
            self.timeline.complain(f"the result of {job_id} answers something else")
        return "opened"


def may_come_again(trouble: SvcError) -> bool:
    return trouble.retryable or trouble.type == "receipt_timeout"


def outcome_of(trouble: SvcError, timeline: Timeline, what: str) -> str:
    """How a piece of work that failed is counted. An answer that no client should get is complained of."""
    if isinstance(trouble, ApiError) and (trouble.status == 500 or trouble.type == "internal_error"):
        timeline.complain(f"{what} was answered {trouble.status} {trouble.type}: {trouble.message}")
    if isinstance(trouble, JobFailed):
        return f"job {trouble.code}"
    return str(trouble.code or trouble.type)


def _question() -> str:
    return f"What is {secrets.token_hex(16)}?"


def _line(n: int, random: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": _TEXT, "input": _question(), "max_output_tokens": 64}
    if random.random() < 0.7:
        body |= {"rate_in": str(RATE_IN), "rate_out": str(RATE_OUT)}
    return {"custom_id": f"line-{n}", "body": body}
