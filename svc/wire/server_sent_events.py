"""Parse server-sent events from bytes as they arrive.

Lines end only at CR, LF or CRLF. `str.splitlines` would also split at U+2028, which JSON strings may contain.
"""

import re
from typing import Final

import attrs

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@attrs.define(slots=True)
class EventReader:
    """Incremental parser. Pass bytes to `feed` as they arrive."""

    _buffer: bytearray = attrs.field(factory=bytearray)
    _searched_bytes: int = 0  # bytes of `_buffer` already searched, so that long lines are not searched again
    _data: list[bytes] = attrs.field(factory=list)
    _data_bytes: int = 0

    @property
    def unfinished_bytes(self) -> int:
        """Return the length of the incomplete event."""
        return len(self._buffer) + self._data_bytes

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of each event that `piece` completes. Event names, ids and comments are skipped.

        Names may be skipped, because servers repeat the name of an event in its data.
        """
        self._buffer += piece
        # A CR at the end may be the first half of a CRLF, so do not search it before the next byte arrives.
        end = len(self._buffer) - 1 if self._buffer.endswith(b"\r") else len(self._buffer)
        events, begin = [], 0
        for line_end in _LINE_END.finditer(self._buffer, self._searched_bytes, end):
            event = self._read_line(bytes(self._buffer[begin : line_end.start()]))
            begin = line_end.end()
            if event is not None:
                events.append(event)
        del self._buffer[:begin]
        self._searched_bytes = end - begin
        return events

    def _read_line(self, line: bytes) -> bytes | None:
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
                self._data_bytes += len(line)
            return None
        event = b"\n".join(self._data)
        self._data.clear()
        self._data_bytes = 0
        return event or None
