"""Multipart uploads through botocore's client."""

import os
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from common.cid import cid_of
from devnet.pins import PinStoreService

PART = os.urandom(5 << 20)
LAST = b"the rest"


def begin(s3: Any, store: PinStoreService, key: str) -> dict[str, str]:
    upload = s3.create_multipart_upload(Bucket=store.bucket, Key=key, Metadata={"note": "mine"})
    return {"Bucket": store.bucket, "Key": key, "UploadId": upload["UploadId"]}


def send(s3: Any, upload: dict[str, str], number: int, body: bytes) -> dict[str, Any]:
    return {"PartNumber": number, "ETag": s3.upload_part(**upload, PartNumber=number, Body=body)["ETag"]}


def code_of(operation: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as refused:
        operation(**arguments)
    return str(refused.value.response["Error"]["Code"])


def test_parts_sent_in_any_order_become_one_object_with_its_content_id(s3: Any, pin_store: PinStoreService) -> None:
    upload = begin(s3, pin_store, "joined")
    last, first = send(s3, upload, 2, LAST), send(s3, upload, 1, PART)
    assert [part["Size"] for part in s3.list_parts(**upload)["Parts"]] == [len(PART), len(LAST)]
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [first, last]})
    cid = str(cid_of(PART + LAST))
    assert done["ResponseMetadata"]["HTTPHeaders"]["x-amz-meta-cid"] == cid
    got = s3.get_object(Bucket=upload["Bucket"], Key=upload["Key"])
    assert got["Body"].read() == PART + LAST
    assert got["Metadata"] == {"note": "mine", "cid": cid}
    assert got["ETag"] == done["ETag"]
    assert done["ETag"].endswith('-2"')
    assert httpx.get(f"{pin_store.gateway}/ipfs/{cid}", trust_env=False).content == PART + LAST
    assert code_of(s3.list_parts, **upload) == "NoSuchUpload"


def test_part_sent_again_replaces_the_first_one(s3: Any, pin_store: PinStoreService) -> None:
    upload = begin(s3, pin_store, "sent again")
    stale, fresh = send(s3, upload, 1, b"stale"), send(s3, upload, 1, b"fresh")
    assert code_of(s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": [stale]}) == "InvalidPart"
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [fresh]})
    assert s3.get_object(Bucket=upload["Bucket"], Key=upload["Key"])["Body"].read() == b"fresh"


def test_aborted_upload_takes_no_more_parts_and_cannot_be_completed(s3: Any, pin_store: PinStoreService) -> None:
    upload = begin(s3, pin_store, "aborted")
    part = send(s3, upload, 1, LAST)
    s3.abort_multipart_upload(**upload)
    assert code_of(s3.upload_part, **upload, PartNumber=2, Body=LAST) == "NoSuchUpload"
    assert code_of(s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": [part]}) == "NoSuchUpload"
    assert code_of(s3.abort_multipart_upload, **upload) == "NoSuchUpload"
    assert code_of(s3.head_object, Bucket=upload["Bucket"], Key=upload["Key"]) == "404"


def test_upload_is_known_under_its_own_key_only(s3: Any, pin_store: PinStoreService) -> None:
    upload = begin(s3, pin_store, "own key")
    assert code_of(s3.upload_part, **{**upload, "Key": "other"}, PartNumber=1, Body=LAST) == "NoSuchUpload"


def test_parts_out_of_order_missing_or_too_small_leave_the_upload_open(s3: Any, pin_store: PinStoreService) -> None:
    upload = begin(s3, pin_store, "refused")
    small, last = send(s3, upload, 1, LAST), send(s3, upload, 2, LAST)
    for parts, code in (
        ([last, small], "InvalidPartOrder"),
        ([small, small], "InvalidPartOrder"),
        ([small, {**last, "PartNumber": 3}], "InvalidPart"),
        ([small, last], "EntityTooSmall"),
    ):
        assert code_of(s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": parts}) == code
    first = send(s3, upload, 1, PART)
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [first, last]})
