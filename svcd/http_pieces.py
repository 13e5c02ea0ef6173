"""Reading an HTTP answer piece by piece, with a way to stop early that leaves nothing to the garbage collector.

httpx nests asynchronous generators that it does not close. Leaving its iteration by `break` or an exception abandons
them half-way, and trio complains when they are collected. Cancelling the read instead ends them from the innermost out.
"""

from collections.abc import Callable
from typing import Final

import httpx
import trio

_LAST_WORDS_SECONDS: Final = 1.0


async def read_pieces(response: httpx.Response, take: Callable[[bytes], bool]) -> None:
    """Until the answer ends or `take` has enough of it (returns True). What `take` raises is raised.

    An answer that is enough is given a second to end, so that its connection can be used again.
    """
    trouble: Exception | None = None
    with trio.CancelScope() as reading:
        async for piece in response.aiter_bytes():
            if trouble is not None:
                continue  # the cancellation arrives with the next piece that has to be waited for
            try:
                if take(piece):
                    reading.deadline = min(reading.deadline, trio.current_time() + _LAST_WORDS_SECONDS)
            except Exception as raised:  # kept for below, whatever it is
                trouble = raised
                reading.cancel()
    if trouble is not None:
        raise trouble
