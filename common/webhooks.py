"""Sign and verify webhook messages according to the Standard Webhooks specification.

webhook-id          msg_…, the same for every attempt: use it to deduplicate
webhook-timestamp   Unix seconds of this attempt
webhook-signature   v1,<base64(HMAC-SHA256(secret, id ‖ "." ‖ timestamp ‖ "." ‖ body))>; spaces separate signatures
secret              whsec_<base64 of 24 to 64 bytes>
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from typing import Final

from common.refusal import Refused

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - a prefix
MIN_SECRET_BYTES: Final = 24
MAX_SECRET_BYTES: Final = 64
CLOCK_TOLERANCE_S: Final = 300  # between webhook-timestamp and the receiver's clock

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

_TIMESTAMP_PATTERN: Final = re.compile(r"[0-9]{1,12}", re.ASCII)


def generate_secret() -> bytes:
    return os.urandom(32)


def secret_text(secret: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def read_secret(text: str, param: str = "secret") -> bytes:
    """Read a secret, or refuse a malformed one. The error never contains the secret."""
    message = (
        f"{param} must be {SECRET_PREFIX} followed by the base64 of {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes"
    )
    if not text.startswith(SECRET_PREFIX):
        raise Refused(message, param)
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise Refused(message, param) from None
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise Refused(message, param)
    return secret


def signature_of(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


def signed_headers(secret: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: signature_of(secret, message_id, timestamp, body),
    }


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """Verify the signature and time of a delivery and return the message id. Refuse a delivery that fails the check.

    The names in `headers` must be in lower case, or the mapping must ignore case. `body` must be the unmodified bytes.
    A replayed delivery verifies again: store the ids of the last `CLOCK_TOLERANCE_S` seconds and deduplicate.
    """
    key = read_secret(secret)
    message_id, timestamp = headers.get(ID_HEADER, ""), headers.get(TIMESTAMP_HEADER, "")
    if not message_id or not _TIMESTAMP_PATTERN.fullmatch(timestamp):
        raise Refused(f"{ID_HEADER} and {TIMESTAMP_HEADER} are required", ID_HEADER)
    if abs(now - int(timestamp)) > CLOCK_TOLERANCE_S:
        raise Refused(
            f"{TIMESTAMP_HEADER} must be within {CLOCK_TOLERANCE_S} s of this machine's clock", TIMESTAMP_HEADER
        )
    expected = signature_of(key, message_id, int(timestamp), body).encode()
    given = headers.get(SIGNATURE_HEADER, "").encode().split(b" ")
    if not any(hmac.compare_digest(expected, each) for each in given):
        raise Refused(f"{SIGNATURE_HEADER} does not match this secret and body", SIGNATURE_HEADER)
    return message_id
