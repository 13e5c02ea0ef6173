"""The lines of heads and trailers as RFC 9112 writes them, and in no other way.

h11 also ends a line at a bare LF and joins folded ones. A proxy in front may see other headers in such a message, and a
header that only one of two servers sees is how requests are smuggled past the first.
"""

from h11 import LocalProtocolError
from h11._receivebuffer import ReceiveBuffer, blank_line_regex


class StrictLines(ReceiveBuffer):
    """Put in the place of a connection's receive buffer. `head`: the latest lines that were taken from it together, as
    they came."""

    def __init__(self) -> None:
        super().__init__()
        self.head = b""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        self.head = b""
        if self._data[:1] == b"\n":
            raise LocalProtocolError("a line must end with CR LF")
        blank = None if self._data[:2] == b"\r\n" else blank_line_regex.search(self._data, self._multiple_lines_search)
        if blank is not None:
            self.head = bytes(self._data[: blank.end()])
            _check(self.head)
        return super().maybe_extract_lines()


def _check(lines: bytes) -> None:
    ended = lines.count(b"\r\n")
    if lines.count(b"\n") != ended or lines.count(b"\r") != ended:
        raise LocalProtocolError("a line must end with CR LF, and hold neither of them before")
    if b"\n " in lines or b"\n\t" in lines:
        raise LocalProtocolError("a header must stand on one line")
