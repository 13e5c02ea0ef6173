"""Requests to the store: signatures compared with botocore's, and the store's clock."""

import datetime
import hashlib
from email.utils import formatdate

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from common.daemon.secrets import Secret
from coordinatord.storage.pins.requests import RequestSigner, StoreClock

CONTENT = b"content"
SHA256 = hashlib.sha256(CONTENT).digest()


def botocores(method: str, url: str, **more: str) -> dict[str, str]:
    headers = {"X-Amz-Content-SHA256": SHA256.hex(), **more}
    request = AWSRequest(method=method, url=url, data=CONTENT, headers=headers)
    S3SigV4Auth(Credentials("access", "secret"), "s3", "eu-west-3").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize(
    ("method", "url", "more"),
    [
        ("PUT", "http://127.0.0.1:9000/bucket/containers/0x00ff", {}),
        ("GET", "https://store.example/bucket/files/file-1", {}),
        ("GET", "https://store.example:443/bucket/a%20b%2B~", {}),
        ("HEAD", "http://store.example:80/bucket/a", {}),
        ("POST", "https://store.example/bucket/a?uploads=", {}),
        ("PUT", "https://store.example/bucket/a?uploadId=x%2Fy%3D&partNumber=12", {}),
        ("PUT", "https://store.example/bucket/ipfs/b", {"x-amz-copy-source": "/bucket/incoming/files/file-1"}),
    ],
)
def test_request_is_signed_as_botocore_signs_it(method: str, url: str, more: dict[str, str]) -> None:
    theirs = botocores(method, url, **more)
    at = datetime.datetime.strptime(theirs["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    signer = RequestSigner(Secret("access"), Secret("secret"), "eu-west-3", clock=at.timestamp)
    ours = signer.headers(method, url, SHA256, more)
    assert {name: theirs[name] for name in ours} == ours
    assert all(name in ours["authorization"] for name in more)


def test_signature_of_the_next_day_has_the_next_days_key() -> None:
    now = [1_700_000_000.0]
    signer = RequestSigner(Secret("access"), Secret("secret"), "eu-west-3", clock=lambda: now[0])
    url = "http://store.example/bucket/a"
    first = signer.headers("GET", url, SHA256)
    assert signer.headers("GET", url, SHA256) == first
    now[0] += 86_400
    fresh = RequestSigner(Secret("access"), Secret("secret"), "eu-west-3", clock=lambda: now[0])
    assert signer.headers("GET", url, SHA256) == fresh.headers("GET", url, SHA256) != first


NOW = 1_800_000_000.0


def dated(seconds: float) -> dict[str, str]:
    return {"date": formatdate(seconds, usegmt=True)}


@pytest.mark.parametrize(
    "date",
    ["soon", "", "Thu, 01 Jan 1970 00:00:00 +99999999999999", f"Thu, 01 Jan {'9' * 30} 00:00:00 GMT"],
)
def test_bad_dates_are_ignored(date: str) -> None:
    clock = StoreClock(lambda: NOW)
    assert not clock.compare({"date": date})
    clock.compare_if_due({"date": date})
    assert clock.now() == NOW


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0, 86_400.0])
def test_clock_follows_the_store_s(ahead: float) -> None:
    clock = StoreClock(lambda: NOW)
    assert clock.compare(dated(NOW - ahead))
    assert abs(clock.now() - (NOW - ahead)) <= 1
    assert not clock.compare(dated(NOW - ahead + 5)), "it is known already"


def test_clock_that_is_set_right_needs_no_correction() -> None:
    local = [NOW]
    clock = StoreClock(lambda: local[0])
    clock.compare_if_due(dated(NOW - 3600))
    local[0] = NOW - 3600 + 100
    clock.compare_if_due(dated(local[0]))
    assert clock.now() == local[0]


def test_small_difference_and_cached_answer_correct_nothing() -> None:
    clock = StoreClock(lambda: NOW)
    assert not clock.compare(dated(NOW - 30))
    assert not clock.compare({**dated(NOW - 3600), "age": "3600"})
    assert clock.now() == NOW
