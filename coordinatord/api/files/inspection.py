"""Check uploads by purpose while they stream, in constant memory."""

from typing import Final, Protocol

import attrs

from common.api import limits
from common.container import CommitmentHasher
from common.refusal import Refused
from coordinatord.api.files.files_sql import Purpose
from coordinatord.api.files.foreign_lines import MAX_CHECKED_LINE_BYTES, reject_foreign_line

MAX_BATCH_LINES: Final = limits.MAX_BATCH_LINES
BLANK_BYTES: Final = b" \t\r"
"""White space of JSON within a line. A line of only these bytes is blank."""
# Number of bytes split into lines at once. Small, because line objects take many times the memory of their bytes.
_SPLIT_BYTES: Final = 1 << 16


@attrs.frozen(slots=True)
class InspectionResult:
    """Facts about a complete upload."""

    line_count: int = 0
    commitment: bytes | None = None


class Inspection(Protocol):
    """Check of an upload. `update` receives all pieces in order, in a thread. Both methods raise Refused for wrong
    content."""

    def update(self, piece: bytes) -> None: ...
    def finish(self) -> InspectionResult: ...


class ContainerInspection:
    """Check of a sealed container's framing. The result has the container's commitment."""

    def __init__(self) -> None:
        self._commitment = CommitmentHasher()
        self._empty = True

    def update(self, piece: bytes) -> None:
        self._empty = self._empty and not piece
        try:
            self._commitment.update(piece)
        except Refused as error:
            raise _container_error(error) from error

    def finish(self) -> InspectionResult:
        if self._empty:
            raise empty_file_error()
        try:
            return InspectionResult(commitment=self._commitment.finish().c)
        except Refused as error:
            raise _container_error(error) from error


class ResultInspection:
    """Check that a sealed result is not empty. The coordinator cannot check more, because it cannot open the result."""

    def __init__(self) -> None:
        self._empty = True

    def update(self, piece: bytes) -> None:
        self._empty = self._empty and not piece

    def finish(self) -> InspectionResult:
        if self._empty:
            raise empty_file_error()
        return InspectionResult()


class LineInspection:
    """Check of a batch file: count lines that are not blank, and reject lines of another API.

    A batch checks the other content of the lines, and lines longer than MAX_CHECKED_LINE_BYTES, when it reads them.
    """

    def __init__(self) -> None:
        self._non_blank_lines = 0
        # Number of complete lines, including blank lines.
        self._line_number = 0
        # Part of the current line that has arrived.
        self._line = b""
        self._too_long = False

    def update(self, piece: bytes) -> None:
        for start in range(0, len(piece), _SPLIT_BYTES):
            *ended, last = piece[start : start + _SPLIT_BYTES].split(b"\n")
            for line in ended:
                self._add_part(line)
                self._end_line()
            self._add_part(last)
        if self._non_blank_lines > MAX_BATCH_LINES:
            raise Refused(f"a batch file has at most {MAX_BATCH_LINES} non-blank lines", "file", "too_many_lines")

    def _add_part(self, part: bytes) -> None:
        if self._too_long:
            return
        self._line += part
        if len(self._line) > MAX_CHECKED_LINE_BYTES:
            self._too_long = bool(self._line.strip(BLANK_BYTES))
            self._line = b""

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        self._line_number += 1
        if self._too_long:
            self._non_blank_lines += 1
            self._too_long = False
        elif line.strip(BLANK_BYTES):
            self._non_blank_lines += 1
            reject_foreign_line(line, self._line_number)

    def finish(self) -> InspectionResult:
        self.update(b"\n")
        if not self._non_blank_lines:
            raise empty_file_error()
        return InspectionResult(line_count=self._non_blank_lines)


def new_inspection(purpose: Purpose) -> Inspection:
    """Return the check for uploads of this purpose."""
    match purpose:
        case "input":
            return ContainerInspection()
        case "result":
            return ResultInspection()
        case "batch":
            return LineInspection()
        case "batch_output":
            raise ValueError("batch outputs are not uploaded")


def empty_file_error() -> Refused:
    return Refused("the file is empty", "file", "empty_file")


def _container_error(error: Refused) -> Refused:
    return Refused(f"the file is not a container: {error.message}", "file", "bad_container")
