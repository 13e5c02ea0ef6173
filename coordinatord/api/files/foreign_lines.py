"""Detect batch lines in the format of another API. The upload rejects such lines. A line that is too long for this
check is rejected when a batch reads it."""

from typing import Final

import msgspec

from common.refusal import Refused

# Longest line that is checked during an upload.
MAX_CHECKED_LINE_BYTES: Final = 1 << 17


class _LineShape(msgspec.Struct):
    """Members that show whether a line was written for another API."""

    body: msgspec.Raw = msgspec.Raw()
    custom_id: msgspec.Raw = msgspec.Raw()
    signature: msgspec.Raw = msgspec.Raw()


_read_shape: Final = msgspec.json.Decoder(_LineShape).decode
WRAPPED_LINE_MESSAGE: Final = (
    "a line must be the whole body of a POST /v1/jobs submission (signed order, auth_sig, amount, container), not"
    " {custom_id, method, url, body} around one"
)
UNSEALED_CUSTOM_ID_MESSAGE: Final = (
    "remove custom_id from the line: it would be public, and the output would not repeat it; put it into the sealed"
    " envelope instead"
)


def foreign_line_error(*, has_body: bool, has_signature: bool, has_custom_id: bool) -> str | None:
    """Return the error message for a line in the format of another batch API, or None for any other line.

    A line of another API would fail, or would lose the custom_id by which its owner identifies the line. `has_body` is
    True if the member `body` is an object.
    """
    if has_body and not has_signature:
        return WRAPPED_LINE_MESSAGE
    return UNSEALED_CUSTOM_ID_MESSAGE if has_custom_id else None


def reject_foreign_line(line: bytes, number: int) -> None:
    """Raise Refused for a line in the format of another API."""
    try:
        shape = _read_shape(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # The line is not a JSON object. The batch reports this error when it reads the line.
        return
    has_custom_id = bytes(shape.custom_id) not in (b"", b"null")
    message = foreign_line_error(
        has_body=bytes(shape.body)[:1] == b"{", has_signature=bool(bytes(shape.signature)), has_custom_id=has_custom_id
    )
    if message is not None:
        raise Refused(f"line {number}: {message}", "file")
