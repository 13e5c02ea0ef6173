"""Signatures made by botocore, checked by the store; and each way in which one can be wrong."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from devnet.pinstore.s3_errors import S3Error
from devnet.pinstore.sigv4 import Credential, SignedRequest, authenticate

CREDENTIAL = Credential("KEY", "secret", "us-east-1")
PATH = "/bucket/a%20key/%C3%BC~.txt"
QUERY = "uploadId=a%2Bb&partNumber=1"


def signed(
    credential: Credential = CREDENTIAL, *, path: str = PATH, query: str = QUERY
) -> tuple[SignedRequest, datetime]:
    """A request as botocore signs it, and the time at which it did."""
    headers = {"host": "store:8480", "x-amz-meta-note": "two  spaces"}
    request = AWSRequest("PUT", f"http://store:8480{path}?{query}", headers, b"body")
    S3SigV4Auth(Credentials(credential.key, credential.secret), "s3", credential.region).add_auth(request)
    raw = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
    signed_at = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return SignedRequest("PUT", path.encode(), query.encode(), raw), signed_at


def refusal(request: SignedRequest, now: datetime) -> str:
    with pytest.raises(S3Error) as refused:
        authenticate(request, [CREDENTIAL], now)
    return refused.value.code


def test_request_signed_by_botocore_is_accepted_with_its_payload_hash() -> None:
    request, now = signed()
    assert authenticate(request, [CREDENTIAL], now) == (
        "230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5"
    )


@pytest.mark.parametrize("path", ["/bucket/plain", "/bucket/a/b//c", "/bucket/100%25", "/bucket/a%3Bb%3D1%2B2"])
def test_any_spelling_of_a_path_that_botocore_signs_is_accepted(path: str) -> None:
    request, now = signed(path=path, query="")
    authenticate(request, [CREDENTIAL], now)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"key": "OTHER"}, "InvalidAccessKeyId"),
        ({"secret": "other"}, "SignatureDoesNotMatch"),
        ({"region": "eu-west-1"}, "AuthorizationHeaderMalformed"),
    ],
)
def test_other_credentials_are_refused(fault: dict[str, str], code: str) -> None:
    request, now = signed(attrs.evolve(CREDENTIAL, **fault))
    assert refusal(request, now) == code


@pytest.mark.parametrize(
    "tamper",
    [
        lambda request: attrs.evolve(request, method="DELETE"),
        lambda request: attrs.evolve(request, raw_path=b"/bucket/other"),
        lambda request: attrs.evolve(request, raw_query=b"partNumber=2&uploadId=a%2Bb"),
        lambda request: with_header(request, b"x-amz-meta-note", b"other"),
        lambda request: with_header(request, b"host", b"elsewhere"),
        lambda request: with_header(request, b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD"),
    ],
    ids=["method", "path", "query", "header", "host", "payload hash"],
)
def test_request_changed_after_signing_is_refused(tamper: Callable[[SignedRequest], SignedRequest]) -> None:
    request, now = signed()
    assert refusal(tamper(request), now) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("minutes", [-16, 16])
def test_clock_more_than_a_quarter_of_an_hour_apart_is_refused(minutes: int) -> None:
    request, now = signed()
    assert refusal(request, now + timedelta(minutes=minutes)) == "RequestTimeTooSkewed"


@pytest.mark.parametrize("minutes", [-14, 14])
def test_clock_within_a_quarter_of_an_hour_is_accepted(minutes: int) -> None:
    request, now = signed()
    authenticate(request, [CREDENTIAL], now + timedelta(minutes=minutes))


def test_amz_header_added_beside_the_signature_is_refused() -> None:
    request, now = signed()
    added = attrs.evolve(request, headers=[*request.headers, (b"x-amz-copy-source", b"/bucket/secret")])
    assert refusal(added, now) == "AccessDenied"


def test_missing_signature_is_refused() -> None:
    request, now = signed()
    bare = [(name, value) for name, value in request.headers if name != b"authorization"]
    assert refusal(attrs.evolve(request, headers=bare), now) == "AccessDenied"


def test_chunk_signed_bodies_are_said_to_be_unsupported() -> None:
    request, now = signed()
    chunked = with_header(request, b"x-amz-content-sha256", b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
    assert refusal(chunked, now) == "NotImplemented"


def with_header(request: SignedRequest, name: bytes, value: bytes) -> SignedRequest:
    others = [(key, held) for key, held in request.headers if key != name]
    return attrs.evolve(request, headers=[*others, (name, value)])


def test_each_of_several_keys_signs_for_itself_and_not_with_the_others_secret() -> None:
    other = attrs.evolve(CREDENTIAL, key="OTHER", secret="another")
    for one in (CREDENTIAL, other):
        request, now = signed(one)
        authenticate(request, [CREDENTIAL, other], now)
    request, now = signed(attrs.evolve(other, secret=CREDENTIAL.secret))
    with pytest.raises(S3Error) as refused:
        authenticate(request, [CREDENTIAL, other], now)
    assert refused.value.code == "SignatureDoesNotMatch"
