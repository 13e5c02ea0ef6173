"""Lines of batch files that are another API's: refused when they are uploaded, and where they were not held whole then,
when a batch comes to them."""

from typing import Final

import msgspec

from common.refusal import Refused

LONGEST_HELD: Final = 1 << 17  # bytes of a line that uploads look into


class _LineShape(msgspec.Struct):
    """The members by which a line shows that it is another API's; whatever else it has is passed over unread."""

    body: msgspec.Raw = msgspec.Raw()
    custom_id: msgspec.Raw = msgspec.Raw()
    signature: msgspec.Raw = msgspec.Raw()


_read_shape: Final = msgspec.json.Decoder(_LineShape).decode
WRAPPED: Final = (
    "a line must be the whole body of a POST /v1/jobs submission (signed order, auth_sig, amount, container), not"
    " {custom_id, method, url, body} around one"
)
NAMED: Final = (
    "custom_id must not stand beside an order, where it would be public and then lost: seal it in the envelope"
)


def foreign(*, body: bool, signed: bool, named: bool) -> str | None:
    """Message for a line that other batch APIs take and that is no submission: it would fail, or lose what its owner
    tells lines apart by. `body`: it has an object of that name; `named`: it has a custom_id."""
    if body and not signed:
        return WRAPPED
    return NAMED if named else None


def check_line(line: bytes, number: int) -> None:
    """Refused when it is such a line."""
    try:
        shape = _read_shape(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # no object: that is a line's own error
    named = bytes(shape.custom_id) not in (b"", b"null")
    message = foreign(body=bytes(shape.body)[:1] == b"{", signed=bool(bytes(shape.signature)), named=named)
    if message is not None:
        raise Refused(f"line {number}: {message}", "file")
