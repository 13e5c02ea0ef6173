"""Check HTTP responses before reading the body: no content encoding, no oversized body.

Two kilobytes of nested gzip expand to gigabytes, and HTTP libraries decompress before a size limit applies. Every
client of this project therefore requests `identity` and rejects any other encoding.
"""

from collections.abc import Mapping
from typing import Final

from common.refusal import Refused

IDENTITY_HEADERS: Final[Mapping[str, str]] = {"accept-encoding": "identity"}
"""Request headers that ask for a response without content encoding."""

_MAX_SHOWN_LENGTH: Final = 64


def check_response_encoding(headers: Mapping[str, str]) -> None:
    """Refuse a response with a content encoding. Call this before reading the body. `headers` must ignore case."""
    encoding = headers.get("content-encoding", "").strip()
    if encoding.lower() not in ("", "identity"):
        raise Refused(f"the response has the content encoding {to_printable_ascii(encoding)}; expected none")


def check_response_length(length: int, max_bytes: int) -> None:
    """Refuse a response that is longer than the limit. `length` counts the bytes received so far."""
    if length > max_bytes:
        raise Refused(f"the response is longer than {max_bytes} bytes")


def to_printable_ascii(text: str) -> str:
    """Return untrusted text as short printable ASCII, for logs and terminals."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain if len(plain) <= _MAX_SHOWN_LENGTH else plain[:_MAX_SHOWN_LENGTH] + "…"
