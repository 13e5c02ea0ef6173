"""`Range: bytes=` of a GET, reduced to one stretch of the content."""

import re
from typing import Final

import attrs

_ONE_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


@attrs.frozen
class Stretch:
    """Bytes `start` up to but without `stop`, of `size`."""

    start: int
    stop: int
    size: int
    partial: bool  # asked for with a Range header that was understood

    @property
    def headers(self) -> dict[str, str]:
        headers = {"content-length": str(self.stop - self.start), "accept-ranges": "bytes"}
        if self.partial:
            headers["content-range"] = f"bytes {self.start}-{self.stop - 1}/{self.size}"
        return headers

    @property
    def status(self) -> int:
        return 206 if self.partial else 200


def stretch_of(header: str | None, size: int) -> Stretch | None:
    """The stretch to answer with, or None if the range lies outside of the content (416).

    A header that is not one byte range asks for nothing, and the whole content is the answer.
    """
    match = _ONE_RANGE.fullmatch(header or "")
    if match is None or match[0] == "bytes=-":
        return Stretch(0, size, size, partial=False)
    first, last = match[1], match[2]
    if not first:  # the last so many bytes
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return Stretch(0, size, size, partial=False)
    return Stretch(start, stop, size, partial=True) if start < stop else None
