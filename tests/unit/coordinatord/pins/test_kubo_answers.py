"""Answers that a Kubo node cannot have written. Each one is a failure of the store."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.storage.pins.kubo import KuboStore
from tests.support.fakes.streamed import StreamedTransport, http_over

pytestmark = pytest.mark.anyio

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
