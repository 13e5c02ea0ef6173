"""Content by its id, as a client without credentials reads it."""

from typing import Any

import httpx
import pytest

from common.cid import cid_of
from devnet.pins import PinStoreService

CONTENT = b"what the gateway serves"


@pytest.fixture
def url(s3: Any, pin_store: PinStoreService) -> str:
    s3.put_object(Bucket=pin_store.bucket, Key="gateway", Body=CONTENT)
    return f"{pin_store.gateway}/ipfs/{cid_of(CONTENT)}"


def request(method: str, url: str, **headers: str) -> httpx.Response:
    return httpx.request(method, url, headers=headers, trust_env=False)


def test_content_comes_with_its_id_as_etag(url: str) -> None:
    answer = request("GET", url)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["etag"] == f'"{cid_of(CONTENT)}"'
    assert "immutable" in answer.headers["cache-control"]


def test_head_says_the_length_and_sends_nothing(url: str) -> None:
    answer = request("HEAD", url)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(CONTENT))


def test_range_is_answered_with_that_stretch(url: str) -> None:
    answer = request("GET", url, range="bytes=5-8")
    assert (answer.status_code, answer.content) == (206, CONTENT[5:9])
    assert answer.headers["content-range"] == f"bytes 5-8/{len(CONTENT)}"


def test_range_outside_of_the_content_is_not_satisfiable(url: str) -> None:
    answer = request("GET", url, range="bytes=1000-")
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(CONTENT)}")


def test_content_held_already_is_not_sent_again(url: str) -> None:
    answer = request("GET", url, **{"if-none-match": f'"{cid_of(CONTENT)}"'})
    assert (answer.status_code, answer.content) == (304, b"")


def test_unknown_content_is_not_found(pin_store: PinStoreService) -> None:
    assert request("GET", f"{pin_store.gateway}/ipfs/{cid_of(b'never stored')}").status_code == 404


@pytest.mark.parametrize("name", ["x", "..%2Findex.sqlite", "BAFKREIA", "Qm" + "a" * 44])
def test_name_that_is_no_content_id_is_refused(pin_store: PinStoreService, name: str) -> None:
    assert request("GET", f"{pin_store.gateway}/ipfs/{name}").status_code in (400, 403)
