"""The store's S3 interface, through botocore's client."""

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from common.cid import cid_of
from devnet.pins import PinStoreService
from tests.integration.devnet.conftest import client_of

LARGE = os.urandom((1 << 20) + 17)  # more than one leaf of the content id's tree


@pytest.fixture
def forger(pin_store: PinStoreService) -> Iterator[Any]:
    """Knows the key's name, and not the secret."""
    client = client_of(pin_store, secret="guessed")
    yield client
    client.close()


@pytest.mark.parametrize("content", [b"", b"x", LARGE], ids=["empty", "one byte", "two leaves"])
def test_object_reads_back_as_put_with_the_content_id_in_every_answer(
    s3: Any, pin_store: PinStoreService, content: bytes
) -> None:
    name = {"Bucket": pin_store.bucket, "Key": f"as put/{len(content)} bytes~+ü"}
    cid = str(cid_of(content))
    put = s3.put_object(**name, Body=content, Metadata={"note": "mine", "cid": "forged"}, ContentType="a/b")
    assert put["ResponseMetadata"]["HTTPHeaders"]["x-amz-meta-cid"] == cid
    head = s3.head_object(**name)
    assert head["ContentLength"] == len(content)
    got = s3.get_object(**name)
    assert got["Body"].read() == content
    for answer in (head, got):
        assert answer["Metadata"] == {"note": "mine", "cid": cid}
        assert answer["ContentType"] == "a/b"
        assert answer["ETag"] == put["ETag"]


def test_range_of_an_object_is_partial_content(s3: Any, pin_store: PinStoreService) -> None:
    name = {"Bucket": pin_store.bucket, "Key": "ranged"}
    s3.put_object(**name, Body=LARGE)
    got = s3.get_object(**name, Range="bytes=1048570-1048580")
    assert got["Body"].read() == LARGE[1048570:1048581]
    assert got["ContentRange"] == f"bytes 1048570-1048580/{len(LARGE)}"
    assert code_of(s3.get_object, **name, Range=f"bytes={len(LARGE)}-") == "InvalidRange"


def test_object_put_over_another_replaces_it_and_its_content_goes(s3: Any, pin_store: PinStoreService) -> None:
    name = {"Bucket": pin_store.bucket, "Key": "replaced"}
    s3.put_object(**name, Body=b"the first")
    s3.put_object(**name, Body=b"the second")
    assert s3.get_object(**name)["Body"].read() == b"the second"
    assert fetch(pin_store, b"the first").status_code == 404


def test_deleted_object_is_gone_and_deleting_again_is_no_error(s3: Any, pin_store: PinStoreService) -> None:
    name = {"Bucket": pin_store.bucket, "Key": "deleted"}
    s3.put_object(**name, Body=b"to go")
    for _ in range(2):
        assert s3.delete_object(**name)["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert code_of(s3.get_object, **name) == "NoSuchKey"
    assert code_of(s3.head_object, **name) == "404"
    assert fetch(pin_store, b"to go").status_code == 404


def test_content_under_two_keys_stays_until_the_second_is_deleted(s3: Any, pin_store: PinStoreService) -> None:
    names = [{"Bucket": pin_store.bucket, "Key": key} for key in ("one", "other")]
    for name in names:
        s3.put_object(**name, Body=b"shared")
    s3.delete_object(**names[0])
    assert fetch(pin_store, b"shared").content == b"shared"
    s3.delete_object(**names[1])
    assert fetch(pin_store, b"shared").status_code == 404


def test_other_bucket_does_not_exist(s3: Any, pin_store: PinStoreService) -> None:
    s3.head_bucket(Bucket=pin_store.bucket)
    assert code_of(s3.get_object, Bucket="elsewhere", Key="x") == "NoSuchBucket"


def test_signature_under_another_secret_is_refused_and_stores_nothing(
    s3: Any, forger: Any, pin_store: PinStoreService
) -> None:
    name = {"Bucket": pin_store.bucket, "Key": "forged"}
    with pytest.raises(ClientError) as refused:
        forger.put_object(**name, Body=b"forged content")
    assert refused.value.response["Error"]["Code"] == "SignatureDoesNotMatch"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert code_of(s3.head_object, **name) == "404"
    assert fetch(pin_store, b"forged content").status_code == 404


def test_request_without_a_signature_is_denied(pin_store: PinStoreService) -> None:
    answer = httpx.get(f"{pin_store.endpoint}/{pin_store.bucket}/key", trust_env=False)
    assert answer.status_code == 403
    assert "<Code>AccessDenied</Code>" in answer.text


@pytest.mark.parametrize(
    ("promise", "code"),
    [
        ({"ContentMD5": "1B2M2Y8AsgTpgAmY7PhCfg=="}, "BadDigest"),
        ({"ChecksumCRC32": "AAAAAA=="}, "BadDigest"),
        ({"ChecksumSHA256": "not base64"}, "InvalidDigest"),
        ({"ChecksumCRC32C": "AAAAAA=="}, "NotImplemented"),
    ],
)
def test_body_without_the_digest_it_promises_is_refused(
    s3: Any, pin_store: PinStoreService, promise: dict[str, str], code: str
) -> None:
    name = {"Bucket": pin_store.bucket, "Key": "promised"}
    assert code_of(s3.put_object, **name, Body=b"body", **promise) == code
    assert code_of(s3.head_object, **name) == "404"


class UnsignedPayload(S3SigV4Auth):
    def payload(self, request: AWSRequest) -> str:
        return "UNSIGNED-PAYLOAD"


@pytest.mark.parametrize(
    ("signer", "status"), [(UnsignedPayload, 200), (S3SigV4Auth, 400)], ids=["unsigned payload", "signed payload"]
)
def test_body_other_than_the_signed_one_passes_only_if_its_payload_was_not_signed(
    pin_store: PinStoreService, signer: type[S3SigV4Auth], status: int
) -> None:
    url = f"{pin_store.endpoint}/{pin_store.bucket}/streamed"
    request = AWSRequest("PUT", url, {"host": urlsplit(url).netloc}, b"what was signed")
    signer(Credentials(pin_store.key, pin_store.secret), "s3", pin_store.region).add_auth(request)
    answer = httpx.put(url, headers=dict(request.headers), content=b"what was sent", trust_env=False)
    assert answer.status_code == status
    assert ("XAmzContentSHA256Mismatch" in answer.text) == (status == 400)


def code_of(operation: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as refused:
        operation(**arguments)
    return str(refused.value.response["Error"]["Code"])


def fetch(store: PinStoreService, content: bytes) -> httpx.Response:
    return httpx.get(f"{store.gateway}/ipfs/{cid_of(content)}", trust_env=False)
