"""Queue of messages for the owner of a tab, without I/O. The chunks of running answers are grouped by time."""

import json
from collections import deque
from typing import Final

import attrs

from common.api.tabs import TAB_GROUPING_WINDOW_S
from common.refusal import Refused
from common.tab.messages import MAX_CHUNKS_PER_DELTA, MAX_STREAM_BYTES, ProviderMessage, TabDelta, chunk_size
from svcd.payload.sealable import to_sealable

_MAX_WAITING_MESSAGES: Final = 256  # while this many wait, svcd reads no further message of the owner
_MAX_GROUP_MESSAGES: Final = 16
_MAX_GROUP_BYTES: Final = 2**19
_MAX_DELTA_BYTES: Final = 2**18
_CHUNK_DEPTH: Final = 2  # nesting depth of a chunk in a `TabDelta` message


@attrs.define(slots=True, eq=False)
class _Stream:
    """Chunks of one answer. `sent_count` is the number of chunks sent on the current channel.

    A new channel gets all chunks again, so their total size is limited. After the limit, the owner gets the remaining
    text with the whole answer.
    """

    chunks: list[dict[str, object]] = attrs.field(factory=list)
    chunk_bytes: list[int] = attrs.field(factory=list)
    sent_count: int = 0
    total_bytes: int = 0
    is_truncated: bool = False  # a chunk was too long or invalid, so no further chunk is sent

    @property
    def has_unsent_chunks(self) -> bool:
        return self.sent_count < len(self.chunks)

    def add(self, chunk: dict[str, object]) -> None:
        if self.is_truncated:
            return
        try:
            piece = to_sealable(chunk, _CHUNK_DEPTH)
            if not isinstance(piece, dict):
                return
            size = chunk_size(piece)
            # This fails for half of a surrogate pair. `piece` has a replacement character instead, so the streamed text
            # would differ from the whole answer, which has the pair.
            json.dumps(chunk, ensure_ascii=False).encode()
        except (Refused, UnicodeEncodeError):
            self.is_truncated = True
            return
        self.total_bytes += size
        self.is_truncated = size > _MAX_DELTA_BYTES or self.total_bytes > MAX_STREAM_BYTES
        if not self.is_truncated:
            self.chunks.append(piece)
            self.chunk_bytes.append(size)

    def take(self, request_id: int) -> tuple[TabDelta, int]:
        """Mark the next chunks as sent. Return them as a message, with their size in bytes."""
        end, size = self.sent_count, 0
        while (
            end < len(self.chunks)
            and end - self.sent_count < MAX_CHUNKS_PER_DELTA
            and size + self.chunk_bytes[end] <= _MAX_DELTA_BYTES
        ):
            size += self.chunk_bytes[end]
            end += 1
        delta = TabDelta(request_id, self.sent_count, tuple(self.chunks[self.sent_count : end]))
        self.sent_count = end
        return delta, size


class OutgoingQueue:
    """Queue of one tab. The first chunk of an answer is sent at once, later chunks every `TAB_GROUPING_WINDOW_S`."""

    def __init__(self) -> None:
        self._messages: deque[ProviderMessage] = deque()
        self._streams: dict[int, _Stream] = {}
        self._ended_ids: list[int] = []
        self._group_at: float | None = None

    @property
    def is_full(self) -> bool:
        return len(self._messages) >= _MAX_WAITING_MESSAGES

    def put(self, message: ProviderMessage) -> None:
        """Queue a message, unless the queue already has an equal message, such as the answer to a repeated request."""
        if message not in self._messages:
            self._messages.append(message)

    def add_chunk(self, request_id: int, chunk: dict[str, object]) -> None:
        self._streams.setdefault(request_id, _Stream()).add(chunk)

    def has_chunks(self, request_id: int) -> bool:
        return request_id in self._streams

    def end(self, request_id: int, message: ProviderMessage) -> None:
        """Queue the answer or failure of a request, behind its chunks."""
        self._messages.append(message)
        if request_id in self._streams:
            self._ended_ids.append(request_id)

    def restart(self) -> None:
        """Send all chunks again, on a new channel. Drop queued answers, because the owner repeats its open requests."""
        self.drop_messages()
        for stream in self._streams.values():
            stream.sent_count = 0

    def drop_messages(self) -> None:
        self._messages.clear()
        self._remove_ended_streams()

    def next_group_at(self, now: float) -> float | None:
        """Return the time of the next group, or None if nothing waits. All tabs send their groups at the same times."""
        unsent = [stream for stream in self._streams.values() if stream.has_unsent_chunks]
        if self._messages or any(stream.sent_count == 0 for stream in unsent):
            return now
        if not unsent:
            return None
        if self._group_at is None:
            self._group_at = (now // TAB_GROUPING_WINDOW_S + 1) * TAB_GROUPING_WINDOW_S
        return self._group_at

    def take(self) -> list[ProviderMessage]:
        """Remove and return the next group of messages. Answers wait until their chunks are sent."""
        self._group_at = None
        group: list[ProviderMessage] = []
        size = 0
        for request_id, stream in self._streams.items():
            while stream.has_unsent_chunks:
                if size >= _MAX_GROUP_BYTES:
                    return group
                delta, more = stream.take(request_id)
                group.append(delta)
                size += more
        while self._messages and len(group) < _MAX_GROUP_MESSAGES:
            group.append(self._messages.popleft())
        if not self._messages:
            self._remove_ended_streams()
        return group

    def _remove_ended_streams(self) -> None:
        for request_id in self._ended_ids:
            self._streams.pop(request_id, None)
        self._ended_ids.clear()
