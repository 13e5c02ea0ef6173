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
        self.head = bytearray()

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Up to the first blank line; None until that is there."""
        data = self._data
        if data.startswith(b"\r\n"):
            self._extract(2)
            return []
        if data.startswith(b"\n"):
            raise LocalProtocolError("a line must end with CR LF")
        blank = blank_line_regex.search(data, self._multiple_lines_search)  # to h11, bare LFs are one, too
        if blank is None:
            self.head = bytearray()
            self._multiple_lines_search = max(0, len(data) - 2)
            return None
        self.head = lines = self._extract(blank.end())
        ended = lines.count(b"\r\n")
        if lines.count(b"\n") != ended or lines.count(b"\r") != ended:
            raise LocalProtocolError("a line must end with CR LF, and hold neither of them before")
        if b"\n " in lines or b"\n\t" in lines:
            raise LocalProtocolError("a header must stand on one line")
        return lines[:-4].split(b"\r\n")
