"""The devnet's pin store as used by coordinators, browsers and strangers."""

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from devnet.pins import PinStoreService
from tests.integration.devnet.conftest import client_of

CONTENT = bytes(range(256)) * 8
PART = 5 << 20


@pytest.fixture
def gateway(devnet_store: PinStoreService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=devnet_store.gateway, trust_env=False) as client:
        yield client


def test_gateway_serves_new_content_at_once(devnet_store: PinStoreService, s3: Any, gateway: httpx.Client) -> None:
    assert gateway.get("/ipfs/new").status_code == 404
    s3.put_object(Bucket=devnet_store.bucket, Key="ipfs/new", Body=CONTENT)
    assert gateway.get("/ipfs/new").content == CONTENT
    s3.delete_object(Bucket=devnet_store.bucket, Key="ipfs/new")
    assert gateway.get("/ipfs/new").status_code == 404


def test_gateway_serves_ranges_to_any_origin(devnet_store: PinStoreService, s3: Any, gateway: httpx.Client) -> None:
    s3.put_object(Bucket=devnet_store.bucket, Key="ipfs/ranged", Body=CONTENT)
    part = gateway.get("/ipfs/ranged", headers={"range": "bytes=3-9", "origin": "https://shop.example"})
    assert (part.status_code, part.content) == (206, CONTENT[3:10])
    assert part.headers["content-range"] == f"bytes 3-9/{len(CONTENT)}"
    assert part.headers["access-control-allow-origin"] == "*"
    assert gateway.get("/ipfs/ranged", headers={"range": f"bytes={len(CONTENT)}-"}).status_code == 416
    assert gateway.get("/ipfs/missing").headers["access-control-allow-origin"] == "*"


def test_gateway_accepts_no_writes(devnet_store: PinStoreService, s3: Any, gateway: httpx.Client) -> None:
    s3.put_object(Bucket=devnet_store.bucket, Key="ipfs/kept", Body=CONTENT)
    assert gateway.put("/ipfs/kept", content=b"other").status_code == 405
    assert gateway.delete("/ipfs/kept").status_code == 405
    assert gateway.get("/ipfs/kept").content == CONTENT


def test_store_joins_the_parts_of_an_upload(devnet_store: PinStoreService, s3: Any, gateway: httpx.Client) -> None:
    content = os.urandom(3 * PART + 1)
    of = {"Bucket": devnet_store.bucket, "Key": "ipfs/large"}
    upload = s3.create_multipart_upload(**of)["UploadId"]
    parts = []
    for number, at in enumerate(range(0, len(content), PART), 1):
        done = s3.upload_part(**of, UploadId=upload, PartNumber=number, Body=content[at : at + PART])
        parts.append({"PartNumber": number, "ETag": done["ETag"]})
    s3.complete_multipart_upload(**of, UploadId=upload, MultipartUpload={"Parts": parts})
    assert gateway.get("/ipfs/large").content == content


def test_store_rejects_a_wrong_secret(devnet_store: PinStoreService) -> None:
    client = client_of(devnet_store, secret="wrong")
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|403"):
        client.put_object(Bucket=devnet_store.bucket, Key="ipfs/forged", Body=CONTENT)
    client.close()
