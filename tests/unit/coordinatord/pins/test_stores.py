"""Content ids and answers of stores, accepted only if they can be right, and the examples of the page on stores."""

import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from common.cid import Cid, ImportProfile, cid_of, dag_pb_leaf_cid
from common.daemon.secrets import Secret
from coordinatord.base.errors import Retryable
from coordinatord.run.config import read_config
from coordinatord.storage.pins.kubo import KuboStore
from coordinatord.storage.pins.requests import RequestSigner, StoreRequests
from coordinatord.storage.pins.store import PinnedObject, PinningStore
from tests.support.fakes.kubo import spelt
from tests.support.fakes.streamed import StreamedTransport, http_over
from tests.unit.coordinatord.environment import ENVIRONMENT

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


GARBLED: Final = (b'{"Hash": "\xff", "Message": "\xff", "RepoSize": "\xff"}', b'{"a": ' + b"[" * 9999)


class Keys:
    async def find_cid(self, key: str) -> str:
        return "bafkqaaa"


CALLS: Final[dict[str, Callable[[KuboStore], Awaitable[object]]]] = {
    "put": lambda store: store.put("key", b"content"),
    "get": lambda store: store.get("key"),
    "holds": lambda store: store.holds("key"),
    "stat": lambda store: store.read_repo_stat(),
}


@pytest.mark.parametrize("body", GARBLED, ids=["no UTF-8", "deep nesting"])
@pytest.mark.parametrize(("call", "status"), [("put", 200), ("stat", 200), ("get", 500), ("holds", 500)])
async def test_unreadable_answer_is_a_failure_of_the_store(call: str, status: int, body: bytes) -> None:
    keys: Any = Keys()
    async with httpx.AsyncClient(transport=StreamedTransport(lambda _: httpx.Response(status, content=body))) as http:
        store = KuboStore(http_over(http), http_over(http), "http://kubo", None, keys, attempts=1)
        with pytest.raises(Retryable):
            await CALLS[call](store)


PAGE = (Path(__file__).parents[4] / "docs" / "operators" / "stores.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```sh\n# example: (\w+)\n(.*?)```", PAGE, re.DOTALL))


def test_every_kind_of_store_has_its_example_and_its_row() -> None:
    assert set(EXAMPLES) == {"filebase", "s3", "kubo"} == set(re.findall(r"^\| `([a-z0-9]+)`", PAGE, re.MULTILINE))


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_example_is_a_configuration_of_that_kind_with_a_gateway(kind: str) -> None:
    environ = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("PIN_")}
    environ |= dict(line.split("=", 1) for line in EXAMPLES[kind].splitlines())
    config = read_config(environ)
    assert config.pin_store == kind
    assert config.gateway_url is not None
    assert set(re.findall(r"^(\w+)=", EXAMPLES[kind], re.MULTILINE)) <= {
        "PIN_STORE",
        "PIN_STORE_ENDPOINT",
        "PIN_STORE_KEY",
        "PIN_STORE_SECRET",
        "PIN_STORE_BUCKET",
        "PIN_STORE_REGION",
        "GATEWAY_URL",
    }
