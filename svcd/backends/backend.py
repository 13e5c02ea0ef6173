"""What svcd asks of a backend, whatever it is made of."""

import re
from typing import Final, Protocol

import attrs

from svcd.job.held import Output, Work


class Backend(Protocol):
    """One model's way to its outputs. Its slots are counted above it: `run` is called at most that often at a time.

    `run` returns in time or raises `JobFailed`:

    - `backend_error`: refused, and no attempt would help; `backend_fault` says whose fault it is
    - `backend_exhausted`: every attempt failed
    - `deadline_wait`: the next wait or attempt would end past `work.deadline`
    - `media_input_refused`: the request does not fit the backend or what was paid

    It may be cancelled at any point and then leaves nothing running.
    """

    async def run(self, work: Work) -> Output: ...

    async def is_up(self) -> bool:
        """A cheap look whether jobs would be taken: what opens the circuit again after a breaker closed it."""
        ...


class LoadProbe(Protocol):
    """How busy a backend is, seen from outside svcd (others may use it too)."""

    async def read(self) -> float | None:
        """0 (idle) to 1 (full); None when there is no reading (counted, and the load is taken from our own slots)."""
        ...


# Server-sent events, read from bytes as they come.
#
# Lines end at CR, LF or CRLF only. (Splitting decoded text at whatever Unicode calls a line end would cut JSON
# strings
# apart that hold U+2028.)

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@attrs.define(slots=True)
class EventReader:
    _rest: bytearray = attrs.field(factory=bytearray)
    _searched: int = 0  # so much of `_rest` holds no line end: an image of megabytes is one line
    _data: list[bytes] = attrs.field(factory=list)

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that `piece` completes. Names, ids and comments are of no use here: the servers that
        name their events name them in the data too."""
        self._rest += piece
        # A CR at the very end may be the first half of a CRLF: it waits for what follows.
        end = len(self._rest) - 1 if self._rest.endswith(b"\r") else len(self._rest)
        events, begin = [], 0
        for line_end in _LINE_END.finditer(self._rest, self._searched, end):
            event = self._line(bytes(self._rest[begin : line_end.start()]))
            begin = line_end.end()
            if event is not None:
                events.append(event)
        del self._rest[:begin]
        self._searched = end - begin
        return events

    def _line(self, line: bytes) -> bytes | None:
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        event = b"\n".join(self._data)
        self._data.clear()
        return event or None
