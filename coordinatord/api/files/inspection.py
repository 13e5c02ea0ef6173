"""Check uploads by purpose while they stream, in constant memory."""

from typing import Final, Protocol

import attrs

from common.api import limits
from common.container import Commitment
from common.refusal import Refused
from coordinatord.api.files.files_sql import Purpose
from coordinatord.api.files.foreign_lines import MAX_CHECKED_LINE_BYTES, check_line

MAX_BATCH_LINES: Final = limits.BATCH_LINES
BLANK: Final = b" \t\r"
"""A line of only these bytes is blank. JSON has no other white space, so a line with any other is malformed."""
# Bytes split into lines at a time, because line objects take many times their size.
_SPLIT_BYTES: Final = 1 << 16


@attrs.frozen(slots=True)
class InspectionResult:
    """Facts about a complete upload."""

    lines: int = 0
    commitment: bytes | None = None


class Inspection(Protocol):
    """Receives all pieces in order. Both methods raise Refused. `update` is called in a thread."""

    def update(self, piece: bytes) -> None: ...
    def finish(self) -> InspectionResult: ...


class ContainerInspection:
    """Check of a sealed container: its framing and its commitment."""

    def __init__(self) -> None:
        self._commitment = Commitment()
        self._empty = True

    def update(self, piece: bytes) -> None:
        self._empty = self._empty and not piece
        try:
            self._commitment.update(piece)
        except Refused as wrong:
            raise _bad_container(wrong) from wrong

    def finish(self) -> InspectionResult:
        if self._empty:
            raise empty_file()
        try:
            return InspectionResult(commitment=self._commitment.finish().c)
        except Refused as wrong:
            raise _bad_container(wrong) from wrong


class ResultInspection:
    """Check that a sealed result is not empty. The coordinator cannot check more, because it cannot open the result."""

    def __init__(self) -> None:
        self._empty = True

    def update(self, piece: bytes) -> None:
        self._empty = self._empty and not piece

    def finish(self) -> InspectionResult:
        if self._empty:
            raise empty_file()
        return InspectionResult()


class LineInspection:
    """Check of a batch file: count lines that are not blank, and reject lines of another API.

    Other content of the lines, and lines too long to hold, are checked when a batch runs them.
    """

    def __init__(self) -> None:
        self._lines = 0
        # Line number, including blank lines.
        self._number = 0
        # Current line, as far as it has arrived.
        self._line = b""
        self._too_long = False

    def update(self, piece: bytes) -> None:
        for start in range(0, len(piece), _SPLIT_BYTES):
            *ended, last = piece[start : start + _SPLIT_BYTES].split(b"\n")
            for line in ended:
                self._add(line)
                self._end_line()
            self._add(last)
        if self._lines > MAX_BATCH_LINES:
            raise Refused(f"a batch file has at most {MAX_BATCH_LINES} non-blank lines", "file", "too_many_lines")

    def _add(self, part: bytes) -> None:
        if self._too_long:
            return
        self._line += part
        if len(self._line) > MAX_CHECKED_LINE_BYTES:
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

    def finish(self) -> InspectionResult:
        self.update(b"\n")
        if not self._lines:
            raise empty_file()
        return InspectionResult(lines=self._lines)


def inspection_of(purpose: Purpose) -> Inspection:
    """Return the check for a purpose of wallets' uploads."""
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
    return Refused("the file is empty", "file", "empty_file")


def _bad_container(wrong: Refused) -> Refused:
    return Refused(f"the file is not a container: {wrong.message}", "file", "bad_container")
