"""Content ids in the spellings of a pinning S3: accepted if they match the content, rejected otherwise."""

import hashlib
import os

import httpx
import pytest

from common.cid import Cid, ImportProfile, cid_of, dag_pb_leaf_cid
from common.daemon.secrets import Secret
from coordinatord.base.errors import Retryable
from coordinatord.storage.pins.requests import RequestSigner, StoreRequests
from coordinatord.storage.pins.store import PinnedObject, PinningStore
from tests.support.fakes.kubo import spelt
from tests.support.fakes.streamed import StreamedTransport, http_over

pytestmark = pytest.mark.anyio

SMALL = b"content"
LARGE = os.urandom(3 << 20)


async def put(content: bytes, said: str) -> PinnedObject:
    """Put content into a store that reports this id for it."""
    answer = httpx.Response(200, headers={"x-amz-meta-cid": said})
    async with httpx.AsyncClient(transport=StreamedTransport(lambda _: answer)) as client:
        signer = RequestSigner(Secret("key"), Secret("secret"), "us-east-1")
        return await PinningStore(StoreRequests(http_over(client), "http://store/b", signer)).put("key", content)


@pytest.mark.parametrize(
    ("content", "said", "cid"),
    [
        (SMALL, str(cid_of(SMALL)), cid_of(SMALL)),
        (SMALL, str(dag_pb_leaf_cid(SMALL)), dag_pb_leaf_cid(SMALL)),
        (SMALL, spelt(str(dag_pb_leaf_cid(SMALL)), as_before=True), dag_pb_leaf_cid(SMALL)),
        (LARGE, str(cid_of(LARGE)), cid_of(LARGE)),
        (LARGE, str(cid_of(LARGE, ImportProfile(1 << 18, 174))), cid_of(LARGE, ImportProfile(1 << 18, 174))),
        (LARGE, spelt(str(cid_of(LARGE)), as_before=True), cid_of(LARGE)),
    ],
    ids=["raw leaf", "dag-pb leaf", "version 0", "our cut", "another cut", "version 0 of many blocks"],
)
async def test_store_s_own_spelling_and_cut_is_taken(content: bytes, said: str, cid: Cid) -> None:
    assert (await put(content, said)).cid == str(cid)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (SMALL, str(cid_of(b"other"))),
        (SMALL, str(dag_pb_leaf_cid(b"other"))),
        (SMALL, spelt(str(dag_pb_leaf_cid(b"other")), as_before=True)),
        (SMALL, str(Cid("dag-pb", hashlib.sha256(SMALL).digest()))),
        (LARGE, str(cid_of(b"other"))),
        (SMALL, "Qm"),
        (SMALL, "none"),
    ],
)
async def test_id_that_cannot_be_the_content_s_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(Retryable) as refused:
        await put(content, said)
    assert refused.value.code == "store_rejected"
