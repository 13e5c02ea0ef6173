"""Inspection of uploads while they pass: by their purpose, in constant memory."""

from typing import Final, Protocol

import attrs

from common.api import limits
from common.container import Commitment
from common.refusal import Refused
from coordinatord.api.files.files_sql import Purpose
from coordinatord.api.files.foreign_lines import LONGEST_HELD, check_line

MOST_LINES: Final = limits.BATCH_LINES
BLANK: Final = b" \t\r"
"""A line of nothing else is blank. Other white space is none to JSON either: such a line is a malformed one."""
_AT_ONCE: Final = 1 << 16  # bytes that are split into lines at a time: their objects weigh many times as much


@attrs.frozen(slots=True)
class Inspected:
    """Facts about a whole upload."""

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
    """Requests, one a line: counts those that are not blank, and refuses lines of another API. What the others say is
    checked when a batch runs them, and so are lines that are too long to be held here."""

    def __init__(self) -> None:
        self._lines = 0
        self._number = 0  # of the line, blank ones counted
        self._line = b""  # the current one, as far as it was seen
        self._too_long = False

    def update(self, piece: bytes) -> None:
        for start in range(0, len(piece), _AT_ONCE):
            *ended, last = piece[start : start + _AT_ONCE].split(b"\n")
            for line in ended:
                self._add(line)
                self._end_line()
            self._add(last)
        if self._lines > MOST_LINES:
            raise Refused(f"a batch file has at most {MOST_LINES} lines that are not blank", "file", "too_many_lines")

    def _add(self, part: bytes) -> None:
        if self._too_long:
            return
        self._line += part
        if len(self._line) > LONGEST_HELD:
            self._too_long = bool(self._line.strip(BLANK))
            self._line = b""

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        self._number += 1
        if self._too_long:
            self._lines += 1
            self._too_long = False
        elif line.strip(BLANK):
            self._lines += 1
            check_line(line, self._number)

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
