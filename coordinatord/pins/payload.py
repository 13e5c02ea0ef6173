"""What one request to the store carries: pieces as they came, never copied together, and the sha256 of them all.

The signature of a request needs the hash before the first byte is sent. It is taken piece by piece as they come, large
pieces in a thread.
"""

import hashlib
from collections.abc import AsyncIterator
from typing import Final

from anyio import to_thread

from coordinatord.beside import Beside

_LARGE: Final = 1 << 16  # hashing more than this would keep the event loop from others


class Payload:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self._digest = hashlib.sha256()

    async def add(self, piece: bytes, thread: Beside | None = None) -> None:
        """With a `thread`, the hash is not known before that is idle."""
        self.pieces.append(piece)
        self.size += len(piece)
        if thread is not None:
            await thread.take(self._digest.update, piece)
        elif len(piece) > _LARGE:
            await to_thread.run_sync(self._digest.update, piece)
        else:
            self._digest.update(piece)

    @property
    def sha256(self) -> bytes:
        return self._digest.digest()

    async def stream(self) -> AsyncIterator[bytes]:
        """From the start, as often as a request is tried."""
        for piece in self.pieces:
            yield piece


async def payload_of(*pieces: bytes) -> Payload:
    payload = Payload()
    for piece in pieces:
        await payload.add(piece)
    return payload
