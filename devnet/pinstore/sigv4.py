"""AWS Signature Version 4 in the Authorization header: does this request come from the holder of the secret?

Authorization: AWS4-HMAC-SHA256 Credential=<key>/<yyyymmdd>/<region>/s3/aws4_request,
               SignedHeaders=<name>;<name>, Signature=<64 hex digits>
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import attrs

from devnet.pinstore.s3_errors import S3Error

UNSIGNED: Final = "UNSIGNED-PAYLOAD"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_LARGEST_SKEW: Final = timedelta(minutes=15)
_TIME: Final = "%Y%m%dT%H%M%SZ"
_AUTHORIZATION: Final = re.compile(
    rf"{_ALGORITHM} +Credential=(?P<credential>[^,\s]+), *SignedHeaders=(?P<headers>[a-z0-9;-]+),"
    r" *Signature=(?P<signature>[0-9a-f]{64})",
    re.ASCII,
)
_SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@attrs.frozen
class Credential:
    key: str
    secret: str = attrs.field(repr=False)
    region: str


@attrs.frozen
class SignedRequest:
    """A request as it came in: nothing decoded."""

    method: str
    raw_path: bytes
    raw_query: bytes
    headers: Sequence[tuple[bytes, bytes]]

    def values(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == name.encode()]

    def value(self, name: str) -> str | None:
        values = self.values(name)
        return values[0] if len(values) == 1 else None


def authenticate(request: SignedRequest, credentials: Sequence[Credential], now: datetime) -> str:
    """Raise `S3Error` unless one of `credentials` signed the request; returns the payload hash that it signed.

    That is `UNSIGNED`, or the SHA-256 in hex which the body has to have: the caller checks the body.
    """
    header = request.value("authorization")
    if header is None:
        raise S3Error("AccessDenied", "A signature in the Authorization header is required.")
    parts = _AUTHORIZATION.fullmatch(header)
    if parts is None:
        raise S3Error("AuthorizationHeaderMalformed", f"The Authorization header is not of {_ALGORITHM}.")
    key, _, scope = parts["credential"].partition("/")
    known = [one for one in credentials if hmac.compare_digest(key.encode(), one.key.encode())]
    if not known:
        raise S3Error("InvalidAccessKeyId", "The access key does not exist.")
    credential = known[0]

    signed_at = _signed_at(request, now)
    expected_scope = f"{signed_at[:8]}/{credential.region}/s3/aws4_request"
    if scope != expected_scope:
        raise S3Error("AuthorizationHeaderMalformed", f"The credential scope must be {expected_scope}.")
    payload_hash = _payload_hash(request)
    names = parts["headers"].split(";")
    _require_signed(request, names)

    canonical = _canonical_request(request, names, payload_hash)
    to_sign = "\n".join((_ALGORITHM, signed_at, scope, hashlib.sha256(canonical).hexdigest()))
    signature = hmac.new(_signing_key(credential, signed_at[:8]), to_sign.encode(), hashlib.sha256)
    if not hmac.compare_digest(signature.hexdigest(), parts["signature"]):
        raise S3Error("SignatureDoesNotMatch", "The signature is not that of this request under this key.")
    return payload_hash


def _signed_at(request: SignedRequest, now: datetime) -> str:
    text = request.value("x-amz-date") or ""
    try:
        signed_at = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        raise S3Error("AccessDenied", "An x-amz-date header (YYYYMMDDTHHMMSSZ) is required.") from None
    if abs(now - signed_at) > _LARGEST_SKEW:
        raise S3Error("RequestTimeTooSkewed", "The request was signed more than 15 minutes from now.")
    return signed_at.strftime(_TIME)


def _payload_hash(request: SignedRequest) -> str:
    declared = request.value("x-amz-content-sha256") or ""
    if declared.startswith("STREAMING-"):
        raise S3Error("NotImplemented", "Bodies signed chunk by chunk are not supported.")
    if declared != UNSIGNED and not _SHA256_HEX.fullmatch(declared):
        raise S3Error("InvalidArgument", f"x-amz-content-sha256 must be {UNSIGNED} or a SHA-256 in hex.")
    return declared


def _require_signed(request: SignedRequest, names: list[str]) -> None:
    """What is not signed could be anybody's: the host and every header of the interface must be."""
    needed = {key.lower().decode("latin-1") for key, _ in request.headers}
    unsigned = {name for name in needed if name == "host" or name.startswith("x-amz-")} - set(names)
    if unsigned:
        raise S3Error("AccessDenied", f"Headers that were not signed: {', '.join(sorted(unsigned))}.")


def _canonical_request(request: SignedRequest, names: list[str], payload_hash: str) -> bytes:
    headers = "".join(
        f"{name}:{','.join(' '.join(value.split()) for value in request.values(name))}\n" for name in names
    )
    lines = (
        request.method,
        _encoded(request.raw_path, "/"),
        _canonical_query(request.raw_query),
        headers,
        ";".join(names),
        payload_hash,
    )
    return "\n".join(lines).encode("latin-1")


def _canonical_query(raw: bytes) -> str:
    pairs = (piece.partition(b"=") for piece in raw.split(b"&") if piece)
    encoded = sorted((_encoded(name), _encoded(value)) for name, _, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded)


def _encoded(raw: bytes, also_plain: str = "") -> str:
    """Percent-encoded in the one spelling that is signed, however the client spelt it."""
    return quote(unquote_to_bytes(raw), safe="-_.~" + also_plain)


@lru_cache(maxsize=16)  # a key for a day
def _signing_key(credential: Credential, date: str) -> bytes:
    key = f"AWS4{credential.secret}".encode()
    for step in (date, credential.region, "s3", "aws4_request"):
        key = hmac.new(key, step.encode(), hashlib.sha256).digest()
    return key
