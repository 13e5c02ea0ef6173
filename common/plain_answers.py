"""Answers of HTTP servers as they are sent: never in an encoding.

Two kilobytes of gzip in gzip unfold to gigabytes, and HTTP libraries unfold by themselves, a piece at a time, past any
limit on what is read. So every client here asks for nothing but `identity`, and takes nothing else.
"""

from collections.abc import Mapping
from typing import Final

from common.refusal import Refused

IDENTITY: Final[Mapping[str, str]] = {"accept-encoding": "identity"}
"""Headers of a request that wants no encoding."""

_LONGEST_NAME: Final = 64


def require_plain(headers: Mapping[str, str]) -> None:
    """Of an answer, before any of its body is read. `headers` must not tell names by their case."""
    encoding = headers.get("content-encoding", "").strip()
    if encoding.lower() not in ("", "identity"):
        raise Refused(f"the answer is encoded ({printable(encoding)}), and only identity was asked for")


def require_short(length: int, longest: int) -> None:
    """So many bytes of an answer are here; Refused when they are more than it may have."""
    if length > longest:
        raise Refused(f"the answer is longer than {longest} bytes")


def printable(text: str) -> str:
    """A stranger's word, fit for a log and a terminal."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain if len(plain) <= _LONGEST_NAME else plain[:_LONGEST_NAME] + "…"
