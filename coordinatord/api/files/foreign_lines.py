"""Detect batch lines in the format of another API. They are rejected on upload or, if too long for the check there,
when a batch reads them."""

from typing import Final

import msgspec

from common.refusal import Refused

# Longest line that uploads check.
MAX_CHECKED_LINE_BYTES: Final = 1 << 17


class _LineShape(msgspec.Struct):
    """Members that identify a line of another API. Other members are skipped."""

    body: msgspec.Raw = msgspec.Raw()
    custom_id: msgspec.Raw = msgspec.Raw()
    signature: msgspec.Raw = msgspec.Raw()


_read_shape: Final = msgspec.json.Decoder(_LineShape).decode
WRAPPED: Final = (
    "a line must be the whole body of a POST /v1/jobs submission (signed order, auth_sig, amount, container), not"
    " {custom_id, method, url, body} around one"
)
NAMED: Final = "custom_id must not be next to an order, where it would be public and then lost: seal it in the envelope"


def foreign(*, body: bool, signed: bool, named: bool) -> str | None:
    """Return the error message for a line in the format of another batch API, or None.

    Such a line would fail, or would lose the custom_id by which its owner identifies it. `body`: the line has an object
    of that name. `named`: it has a custom_id.
    """
    if body and not signed:
        return WRAPPED
    return NAMED if named else None


def check_line(line: bytes, number: int) -> None:
    """Raise Refused for a line of another API."""
    try:
        shape = _read_shape(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # Not an object: reported when the batch reads the line.
        return
    named = bytes(shape.custom_id) not in (b"", b"null")
    message = foreign(body=bytes(shape.body)[:1] == b"{", signed=bool(bytes(shape.signature)), named=named)
    if message is not None:
        raise Refused(f"line {number}: {message}", "file")
