"""Webhook signatures, as the Standard Webhooks specification has them: secrets, headers, and their verification.

webhook-id          msg_…, the same for every attempt: who has seen it does not act again
webhook-timestamp   Unix seconds of this attempt
webhook-signature   v1,<base64(HMAC-SHA256(secret, id ‖ "." ‖ timestamp ‖ "." ‖ body))>, several by spaces
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

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what secrets begin with
SECRET_LEAST, SECRET_MOST = 24, 64  # bytes
TOLERANCE: Final = 300  # seconds that an attempt may be away from the receiver's clock

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}", re.ASCII)


def new_secret() -> bytes:
    return os.urandom(32)


def secret_text(secret: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def read_secret(text: str, param: str = "secret") -> bytes:
    """Raises Refused, naming `param` and never the text."""
    wrong = f"{param} must be {SECRET_PREFIX} and the base64 of {SECRET_LEAST} to {SECRET_MOST} bytes"
    if not text.startswith(SECRET_PREFIX):
        raise Refused(wrong, param)
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise Refused(wrong, param) from None
    if not SECRET_LEAST <= len(secret) <= SECRET_MOST:
        raise Refused(wrong, param)
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
    """The message's id, once the signature was found to be of `secret` and of now. Raises Refused. `headers` by names
    in lower case, or a mapping that does not care; `body`: the bytes as they came.

    An attempt that came twice verifies twice: keep the ids of `TOLERANCE` seconds, and act once on each."""
    key = read_secret(secret)
    message_id, timestamp = headers.get(ID_HEADER, ""), headers.get(TIMESTAMP_HEADER, "")
    if not message_id or not _TIMESTAMP.fullmatch(timestamp):
        raise Refused(f"{ID_HEADER} and {TIMESTAMP_HEADER} must come with a delivery", ID_HEADER)
    if abs(now - int(timestamp)) > TOLERANCE:
        raise Refused(f"{TIMESTAMP_HEADER} must be within {TOLERANCE} s of this clock", TIMESTAMP_HEADER)
    right = signature_of(key, message_id, int(timestamp), body).encode()
    told = headers.get(SIGNATURE_HEADER, "").encode().split(b" ")
    if not any(hmac.compare_digest(right, each) for each in told):
        raise Refused(f"{SIGNATURE_HEADER} must be of this secret and this body", SIGNATURE_HEADER)
    return message_id
