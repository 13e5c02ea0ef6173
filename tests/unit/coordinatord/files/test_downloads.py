"""Downloads of files. Each keeps a connection to the store while its client reads."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest

from coordinatord.api.files.files_sql import FileRow
from coordinatord.api.files.routes import MAX_CONCURRENT_DOWNLOADS, FileRoutes
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import SessionRow
from coordinatord.http.routing import Request
from coordinatord.http.streaming import StreamedResponse

pytestmark = pytest.mark.anyio

WALLET: Final = b"\x01" * 20
ANOTHER: Final = b"\x02" * 20


class Files:
    async def find(self, file_id: str, owner: bytes) -> FileRow:
        row: Any = FILE
        return row

    @asynccontextmanager
    async def open(self, row: FileRow, first: int = 0, last: int | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"x"

        yield pieces()


class FILE:
    id, cid, bytes, purpose, filename = "file-1", "b", 1, "batch", "lines"


def request(caller: str, wallet: bytes) -> Request:
    return Request(caller, {"id": "file-1"}, {}, None, SessionRow(wallet, None))


@pytest.mark.parametrize(
    ("caller", "wallet"), [("same", ANOTHER), ("another", WALLET)], ids=["of one address", "of one wallet"]
)
async def test_downloads_at_a_time_are_limited(caller: str, wallet: bytes) -> None:
    files: Any = Files()
    routes = FileRoutes(files)

    async def begin(stack: AsyncExitStack, caller: str, wallet: bytes) -> None:
        answer = await routes.download(request(caller, wallet))
        assert isinstance(answer, StreamedResponse)
        await stack.enter_async_context(answer.content())

    async with AsyncExitStack() as stack:
        for _ in range(MAX_CONCURRENT_DOWNLOADS):
            await begin(stack, "same", WALLET)
        with pytest.raises(Retryable, match="downloads at a time"):
            await begin(stack, caller, wallet)
        await begin(stack, "another", ANOTHER)
    async with AsyncExitStack() as stack:
        await begin(stack, caller, wallet)
