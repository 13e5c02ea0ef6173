"""Does a body have the digests that its headers promise?"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Final

from devnet.pinstore.content import Received
from devnet.pinstore.s3_errors import S3Error
from devnet.pinstore.sigv4 import UNSIGNED

_DIGESTS: Final[dict[str, Callable[[Received], bytes]]] = {
    "content-md5": lambda received: received.md5,
    "x-amz-checksum-crc32": lambda received: received.crc32,
    "x-amz-checksum-sha1": lambda received: received.sha1,
    "x-amz-checksum-sha256": lambda received: received.sha256,
}


def require_checkable(headers: Mapping[str, str]) -> None:
    """Before the body is read: a digest that cannot be checked here must not seem to have been."""
    for name in headers:
        if name.startswith("x-amz-checksum-") and name not in _DIGESTS:
            raise S3Error("NotImplemented", f"{name} is not supported.")


def require_promised(received: Received, signed_hash: str, headers: Mapping[str, str]) -> None:
    if signed_hash not in (UNSIGNED, received.sha256.hex()):
        raise S3Error("XAmzContentSHA256Mismatch", "The body is not the one that was signed.")
    for name, digest in _DIGESTS.items():
        if name not in headers:
            continue
        try:
            promised = base64.b64decode(headers[name], validate=True)
        except binascii.Error:
            raise S3Error("InvalidDigest", f"{name} is not base64.") from None
        if promised != digest(received):
            raise S3Error("BadDigest", f"The body does not have the digest in {name}.")
