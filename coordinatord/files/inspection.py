"""What is checked of an upload while it passes: by its purpose, in constant memory."""

from typing import Final, Protocol

import attrs

from common.container import Commitment
from common.refusal import Refused
from common.wire import limits
from coordinatord.files.sql import Purpose

MOST_LINES: Final = limits.BATCH_LINES
BLANK: Final = b" \t\r"
"""A line of nothing else is blank. Other white space is none to JSON either: such a line is a malformed one."""
_AT_ONCE: Final = 1 << 16  # bytes that are split into lines at a time: their objects weigh many times as much


@attrs.frozen(slots=True)
class Inspected:
    """What is known of a whole upload."""

    lines: int = 0
    commitment: bytes | None = None


class Inspection(Protocol):
    """Sees all pieces in order. Both raise Refused; `update` is called in a thread."""

    def update(self, piece: bytes) -> None: ...
    def finish(self) -> Inspected: ...


class ContainerInspection:
    """A sealed container: its framing, and what it commits to."""

    def __init__(self) -> None:
        self._commitment = Commitment()
        self._empty = True

    def update(self, piece: bytes) -> None:
        self._empty = self._empty and not piece
        try:
            self._commitment.update(piece)
        except Refused as wrong:
            raise _bad_container(wrong) from wrong

    def finish(self) -> Inspected:
        if self._empty:
            raise empty_file()
        try:
            return Inspected(commitment=self._commitment.finish().c)
        except Refused as wrong:
            raise _bad_container(wrong) from wrong


class ResultInspection:
    """A sealed result: the coordinator knows nothing of it, so it may be anything but empty."""

    def __init__(self) -> None:
        self._empty = True

    def update(self, piece: bytes) -> None:
        self._empty = self._empty and not piece

    def finish(self) -> Inspected:
        if self._empty:
            raise empty_file()
        return Inspected()


class LineInspection:
    """Requests, one a line: counts those that are not blank. What they say is checked when a batch runs them."""

    def __init__(self) -> None:
        self._lines = 0
        self._in_line = False  # something of the current line was seen that is not blank

    def update(self, piece: bytes) -> None:
        for start in range(0, len(piece), _AT_ONCE):
            *ended, last = piece[start : start + _AT_ONCE].split(b"\n")
            for line in ended:
                self._lines += self._in_line or bool(line.strip(BLANK))
                self._in_line = False
            self._in_line = self._in_line or bool(last.strip(BLANK))
        if self._lines > MOST_LINES:
            raise Refused(f"a batch file has at most {MOST_LINES} lines that are not blank", "file", "too_many_lines")

    def finish(self) -> Inspected:
        self.update(b"\n")
        if not self._lines:
            raise empty_file()
        return Inspected(lines=self._lines)


def inspection_of(purpose: Purpose) -> Inspection:
    """Of what wallets upload; batches know what they write themselves."""
    match purpose:
        case "input":
            return ContainerInspection()
        case "result":
            return ResultInspection()
        case "batch":
            return LineInspection()
        case "batch_output":
            raise ValueError("batch outputs are not uploaded")


def empty_file() -> Refused:
    return Refused("the file holds nothing", "file", "empty_file")


def _bad_container(wrong: Refused) -> Refused:
    return Refused(f"the file is not a container: {wrong.message}", "file", "bad_container")
