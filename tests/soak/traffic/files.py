"""Uploads that are read back directly, or used as containers of jobs."""

import hashlib
import secrets
from typing import Final

import attrs

from svc.errors import ApiError
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
