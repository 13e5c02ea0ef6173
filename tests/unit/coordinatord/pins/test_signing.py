"""Signatures of requests to the store, compared with botocore's."""

import datetime
import hashlib

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from common.daemon.secrets import Secret
from coordinatord.storage.pins.requests import RequestSigner

CONTENT = b"content"
SHA256 = hashlib.sha256(CONTENT).digest()


def botocores(method: str, url: str, **more: str) -> dict[str, str]:
    headers = {"X-Amz-Content-SHA256": SHA256.hex(), **more}
    request = AWSRequest(method=method, url=url, data=CONTENT, headers=headers)
    S3SigV4Auth(Credentials("access", "secret"), "s3", "eu-west-3").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("PUT", "http://127.0.0.1:9000/bucket/containers/0x00ff"),
        ("GET", "https://store.example/bucket/files/file-1"),
        ("GET", "https://store.example:443/bucket/a%20b%2B~"),
        ("HEAD", "http://store.example:80/bucket/a"),
        ("POST", "https://store.example/bucket/a?uploads="),
        ("PUT", "https://store.example/bucket/a?uploadId=x%2Fy%3D&partNumber=12"),
    ],
)
def test_request_is_signed_as_botocore_signs_it(method: str, url: str) -> None:
    theirs = botocores(method, url)
    at = datetime.datetime.strptime(theirs["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    signer = RequestSigner(Secret("access"), Secret("secret"), "eu-west-3", clock=at.timestamp)
    ours = signer.headers(method, url, SHA256)
    assert {name: theirs[name] for name in ours} == ours


def test_headers_of_s3_s_own_are_signed_as_botocore_signs_them() -> None:
    url, more = "https://store.example/bucket/ipfs/b", {"x-amz-copy-source": "/bucket/incoming/files/file-1"}
    theirs = botocores("PUT", url, **more)
    at = datetime.datetime.strptime(theirs["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    signer = RequestSigner(Secret("access"), Secret("secret"), "eu-west-3", clock=at.timestamp)
    ours = signer.headers("PUT", url, SHA256, more)
    assert {name: theirs[name] for name in ours} == ours
    assert "x-amz-copy-source" in ours["authorization"]


def test_signature_of_the_next_day_has_the_next_days_key() -> None:
    now = [1_700_000_000.0]
    signer = RequestSigner(Secret("access"), Secret("secret"), "eu-west-3", clock=lambda: now[0])
    url = "http://store.example/bucket/a"
    first = signer.headers("GET", url, SHA256)
    assert signer.headers("GET", url, SHA256) == first
    now[0] += 86_400
    fresh = RequestSigner(Secret("access"), Secret("secret"), "eu-west-3", clock=lambda: now[0])
    assert signer.headers("GET", url, SHA256) == fresh.headers("GET", url, SHA256) != first
