"""Batches, and uploads that are read back directly or used as containers of jobs."""

import hashlib
import secrets
from typing import Any, Final

import anyio
import attrs

from devnet.catalogue import MODELS
from svc.batches.preparation import PreparedBatch
from svc.errors import ApiError, InvalidRequest, SvcError
from svc.records import Batch
from tests.soak.programs import RATE_IN, RATE_OUT
from tests.soak.timeline import Timeline
from tests.soak.traffic.buyer import Buyer

# Sizes of both single-request and multipart uploads.
_SIZES: Final = (1, 70_000, 3_000_000, 12_000_000)
_TRIES: Final = 60


@attrs.frozen
class FileWork:
    timeline: Timeline

    async def file(self, buyer: Buyer) -> str:
        """Store at one coordinator, and read at another."""
        content = secrets.token_bytes(buyer.random.choice(_SIZES))
        async with buyer.anywhere() as client:
            stored = await client.files.upload(content, "result")
        if stored.bytes != len(content):
            self.timeline.complain(f"I7: file {stored.id} was stored as {stored.bytes} of {len(content)} bytes")
        for _ in range(_TRIES):
            try:
                async with buyer.anywhere() as client:
                    read = await client.files.content(stored.id)
            except ApiError as trouble:
                if trouble.retryable:
                    continue
                raise
            if hashlib.sha256(read).digest() != hashlib.sha256(content).digest():
                self.timeline.complain(f"I7: file {stored.id} was read as something else than was stored")
            return "read back"
        return "not read"


_LINES: Final = (5, 20)
_CANCEL_AFTER_S: Final = (0.0, 3.0)  # from before the first post until after the last


@attrs.frozen
class BatchWork:
    timeline: Timeline

    async def batch(self, buyer: Buyer) -> str:
        """Order lines with rates for any provider, and then lines that the plan assigns, which share jobs."""
        prepared, created = await self._created(buyer, buyer.random.randint(*_LINES))
        batch = await self._ended(buyer, created)
        total, jobs = batch.request_counts.total, len(prepared.job_ids)
        if total != jobs:
            self.timeline.complain(f"I6: batch {batch.id} has {total} of {jobs} jobs")
        return batch.status

    async def cancelled_batch(self, buyer: Buyer) -> str:
        _, created = await self._created(buyer, buyer.random.randint(*_LINES))
        await anyio.sleep(buyer.random.uniform(*_CANCEL_AFTER_S))
        try:
            async with buyer.anywhere() as client:
                await client.batches.cancel(created.id)
        except InvalidRequest as refusal:
            if refusal.code != "batch_not_cancellable":  # the batch ended first
                raise
        return (await self._ended(buyer, created)).status

    async def _created(self, buyer: Buyer, count: int) -> tuple[PreparedBatch, Batch]:
        buyer.doing = "preparing"
        rated = buyer.random.randint(0, count)
        lines = [_line(n, is_rated=n < rated) for n in range(count)]
        async with buyer.anywhere() as client:
            prepared = await client.batches.prepare(lines, window="1h")
            return prepared, await client.batches.create(prepared)

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


def _line(n: int, *, is_rated: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"model": MODELS[0].name, "input": f"Line {secrets.token_hex(16)}", "max_output_tokens": 64}
    if is_rated:
        body |= {"rate_in": str(RATE_IN), "rate_out": str(RATE_OUT)}
    return {"custom_id": f"line-{n}", "body": body}
