"""Exchange the frames of tabs through the coordinator's mailbox, with one poster for all tabs and one reader per tab.

Frames that arrive while a post is under way share the next post. A tab waits until its frames are accepted, so at most
one group of each tab is in memory.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NoReturn, Protocol

import attrs
import structlog
import trio

from common.api.tabs import MAX_TAB_FRAMES_PER_POST, MAX_TAB_POST_BYTES, TabPost
from common.refusal import Refused
from common.scalars import hex_of
from svc.wire.transport import ApiError, ConnectionFailed

log = structlog.get_logger(__name__)

_ENVELOPE_BYTES: Final = 128  # JSON around one frame in the body of a post
_MAX_FRAMES_PER_TAB: Final = 32  # in one post, so that a tab with a large answer does not delay other tabs
_POST_TIMEOUT_S: Final = 10.0
_FIRST_RETRY_PAUSE_S: Final = 0.25
_MAX_RETRY_PAUSE_S: Final = 5.0
_MIN_STEADY_STREAM_S: Final = 10.0  # after a stream of this length, the reconnect backoff is reset

HandleFrame = Callable[[bytes], Awaitable[None]]


class FrameRoutes(Protocol):
    """Routes of the mailbox, which `svc.wire.tabs.TabRoutes` implements."""

    async def post(self, frames: Sequence[tuple[bytes, bytes]]) -> TabPost: ...

    def frames(self, job_id: bytes) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...


@attrs.define(slots=True, eq=False)
class _PendingPost:
    job_id: bytes
    frames: list[bytes]
    accepted: bool = False
    done: trio.Event = attrs.field(factory=trio.Event)

    @property
    def body_bytes(self) -> int:
        return sum(len(frame) * 4 // 3 + _ENVELOPE_BYTES for frame in self.frames)


@attrs.define(slots=True, eq=False)
class Mailbox:
    routes: FrameRoutes
    _waiting: deque[_PendingPost] = attrs.field(factory=deque)
    _filled: trio.Event = attrs.field(factory=trio.Event)

    async def serve(self) -> NoReturn:
        """Post the frames of all tabs."""
        while True:
            while not self._waiting:
                self._filled = trio.Event()
                await self._filled.wait()
            await self._post(self._take_batch())

    async def send(self, job_id: bytes, frames: list[bytes]) -> None:
        """Send the frames, and retry until the mailbox has accepted all of them."""
        for start in range(0, len(frames), _MAX_FRAMES_PER_TAB):
            part, pause = frames[start : start + _MAX_FRAMES_PER_TAB], _FIRST_RETRY_PAUSE_S
            while not await self._try_post(job_id, part):
                await trio.sleep(pause)
                pause = min(_MAX_RETRY_PAUSE_S, 2 * pause)

    async def read(self, job_id: bytes, handle_frame: HandleFrame) -> NoReturn:
        """Pass the frames of a tab to `handle_frame`. Reconnect until this call is cancelled."""
        pause = _FIRST_RETRY_PAUSE_S
        while True:
            began, reason = trio.current_time(), "the stream ended"
            try:
                async with self.routes.frames(job_id) as frames:
                    async for frame in frames:
                        await handle_frame(frame)
            except (ApiError, ConnectionFailed, Refused) as failed:
                reason = str(failed)
            log.debug("mailbox stream ended", job=hex_of(job_id), reason=reason)
            pause = (
                _FIRST_RETRY_PAUSE_S
                if trio.current_time() - began > _MIN_STEADY_STREAM_S
                else min(_MAX_RETRY_PAUSE_S, 2 * pause)
            )
            await trio.sleep(pause)

    async def _try_post(self, job_id: bytes, frames: list[bytes]) -> bool:
        pending = _PendingPost(job_id, frames)
        self._waiting.append(pending)
        self._filled.set()
        try:
            await pending.done.wait()
        finally:
            if pending in self._waiting:  # cancelled before its post
                self._waiting.remove(pending)
        return pending.accepted

    def _take_batch(self) -> list[_PendingPost]:
        batch: list[_PendingPost] = []
        frames, size = 0, 0
        while self._waiting:
            next_post = self._waiting[0]
            frames, size = frames + len(next_post.frames), size + next_post.body_bytes
            if batch and (frames > MAX_TAB_FRAMES_PER_POST or size > MAX_TAB_POST_BYTES):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _post(self, batch: list[_PendingPost]) -> None:
        """Post a batch.

        If the answer is lost, the tabs post their frames again, because an owner notices a repeated frame sooner than
        a missing one.
        """
        try:
            with trio.move_on_after(_POST_TIMEOUT_S):
                answer = await self.routes.post([(post.job_id, frame) for post in batch for frame in post.frames])
                refused = {refusal.job_id: refusal.code for refusal in answer.refused}
                for post in batch:
                    post.accepted = hex_of(post.job_id) not in refused
                if refused:
                    log.debug("frames refused by the mailbox", tabs=refused)
        except (ApiError, ConnectionFailed, Refused) as failed:
            log.debug("frames not posted", reason=str(failed))
        finally:
            for post in batch:
                post.done.set()
