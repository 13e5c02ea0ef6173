"""Batches that run to their end, or are cancelled halfway."""

import secrets
from random import Random
from typing import Any, Final

import anyio
import attrs

from devnet.catalogue import MODELS
from svc.errors import InvalidRequest, SvcError
from svc.records import Batch
from tests.soak.programs import RATE_IN, RATE_OUT
from tests.soak.timeline import Timeline
from tests.soak.traffic.buyer import Buyer

_LINES: Final = (5, 20)
_TAKEN_BACK_AFTER: Final = (0.0, 3.0)  # seconds: from before the first post until after the last


@attrs.frozen
class BatchWork:
    timeline: Timeline

    async def batch(self, buyer: Buyer) -> str:
        """Order some lines with rates for any provider, and some that the plan assigns."""
        count = buyer.random.randint(*_LINES)
        batch = await self._ended(buyer, await self._created(buyer, count))
        if batch.request_counts.total != count:
            self.timeline.complain(f"I6: batch {batch.id} has {batch.request_counts.total} of {count} lines")
        return batch.status

    async def cancelled_batch(self, buyer: Buyer) -> str:
        created = await self._created(buyer, buyer.random.randint(*_LINES))
        await anyio.sleep(buyer.random.uniform(*_TAKEN_BACK_AFTER))
        try:
            async with buyer.anywhere() as client:
                await client.batches.cancel(created.id)
        except InvalidRequest as refusal:
            if refusal.code != "batch_not_cancellable":  # the batch ended first
                raise
        return (await self._ended(buyer, created)).status

    async def _created(self, buyer: Buyer, count: int) -> Batch:
        buyer.doing = "preparing"
        lines = [_line(n, buyer.random) for n in range(count)]
        async with buyer.anywhere() as client:
            return await client.batches.create(await client.batches.prepare(lines, window="1h"))

    async def _ended(self, buyer: Buyer, batch: Batch) -> Batch:
        buyer.doing = f"waiting for {batch.id}"
        while not batch.ended:
            await anyio.sleep(1)
            try:
                async with buyer.anywhere() as client:
                    batch = await client.batches.get(batch.id)
            except SvcError as trouble:
                if not trouble.retryable:
                    raise
        return batch


def _line(n: int, random: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": MODELS[0].name, "input": f"Line {secrets.token_hex(16)}", "max_output_tokens": 64}
    if random.random() < 0.7:
        body |= {"rate_in": str(RATE_IN), "rate_out": str(RATE_OUT)}
    return {"custom_id": f"line-{n}", "body": body}
