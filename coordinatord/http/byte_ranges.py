"""Parse the request header `Range: bytes=` with a single range."""

import re
from typing import Final

import attrs

_SINGLE_RANGE: Final = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})", re.ASCII)


@attrs.frozen(slots=True)
class ByteRange:
    """Bytes `first` to `last` inclusive."""

    first: int
    last: int


class UnsatisfiableRange(Exception):
    """Error for a requested range outside of the content."""


def resolve_byte_range(header: str | None, size: int) -> ByteRange | None:
    """Return the requested range, or None to send the whole content.

    Return None when the header is absent or malformed, or lists several ranges. Raise UnsatisfiableRange if
    the range lies outside of the content.
    """
    match = _SINGLE_RANGE.fullmatch((header or "").strip())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        if int(last) == 0 or size == 0:
            raise UnsatisfiableRange
        return ByteRange(max(0, size - int(last)), size - 1)
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        raise UnsatisfiableRange
    return ByteRange(int(first), min(int(last), size - 1) if last else size - 1)
