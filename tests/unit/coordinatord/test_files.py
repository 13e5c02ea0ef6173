"""Files: their inspection while they arrive, and downloads, which keep a connection to the store."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.box import SecretKey
from common.container import commitment_of, seal
from common.refusal import Refused
from coordinatord.api.files.files_sql import FileRow, Purpose
from coordinatord.api.files.foreign_lines import (
    MAX_CHECKED_LINE_BYTES,
    UNSEALED_CUSTOM_ID_MESSAGE,
    WRAPPED_LINE_MESSAGE,
)
from coordinatord.api.files.inspection import BLANK_BYTES, MAX_BATCH_LINES, InspectionResult, new_inspection
from coordinatord.api.files.routes import MAX_CONCURRENT_DOWNLOADS, FileRoutes
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import SessionRow
from coordinatord.http.routing import Request
from coordinatord.http.streaming import StreamedResponse

CONTAINER = seal(SecretKey(b"\x07" * 32).public, 1, b"\x01" * 20, b"\x02" * 20, b"payload" * 20_000)


def inspect(purpose: Purpose, *pieces: bytes) -> InspectionResult:
    inspection = new_inspection(purpose)
    for piece in pieces:
        inspection.update(piece)
    return inspection.finish()


@given(st.lists(st.text(alphabet="ab \t\r\n", max_size=20).map(str.encode)))
def test_nonblank_lines_are_counted_for_any_chunking(pieces: list[bytes]) -> None:
    lines = sum(bool(line.strip(BLANK_BYTES)) for line in b"".join(pieces).split(b"\n"))
    if lines:
        assert inspect("batch", *pieces) == InspectionResult(line_count=lines)
    else:
        with pytest.raises(Refused) as empty:
            inspect("batch", *pieces)
        assert empty.value.code == "empty_file"


@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n \n"])
def test_batch_of_the_most_lines_passes_and_one_more_is_refused(last: bytes) -> None:
    whole = b"\n".join([b"{}"] * MAX_BATCH_LINES) + last
    assert inspect("batch", whole).line_count == MAX_BATCH_LINES
    with pytest.raises(Refused) as many:
        inspect("batch", whole, b"\n{}")
    assert many.value.code == "too_many_lines"


def test_container_yields_its_commitment() -> None:
    assert inspect("input", CONTAINER[:50], CONTAINER[50:]).commitment == commitment_of(CONTAINER).c


@pytest.mark.parametrize(
    "content",
    [b"\x01short", b"\x02" + CONTAINER[1:], CONTAINER[: 81 + 24 + 65_553 + 5]],
    ids=["short", "version", "cut"],
)
def test_invalid_container_is_refused(content: bytes) -> None:
    with pytest.raises(Refused) as bad:
        inspect("input", content)
    assert (bad.value.code, bad.value.param) == ("bad_container", "file")


@pytest.mark.parametrize("purpose", ["input", "result", "batch"])
def test_file_without_a_byte_is_empty(purpose: Purpose) -> None:
    with pytest.raises(Refused) as empty:
        inspect(purpose, b"")
    assert empty.value.code == "empty_file"
    if purpose == "result":
        assert inspect(purpose, b"", b"\0") == InspectionResult()


ORDER = b'{"c":"0x00","signature":"0x00","body":{"kept":"apart"}}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"custom_id":"a","method":"POST","url":"/v1/responses","body":{"signature":"0x00"}}', WRAPPED_LINE_MESSAGE),
        (b'{"body":{"model":"demo/text-small","input":"a"}}', WRAPPED_LINE_MESSAGE),
        (b'{"signature":"0x00","custom_id":"a"}', UNSEALED_CUSTOM_ID_MESSAGE),
        (b'{"signature":"0x00","custom_id":7}', UNSEALED_CUSTOM_ID_MESSAGE),
    ],
    ids=["wrapped", "a body alone", "named", "named by a number"],
)
@pytest.mark.parametrize("size", [1, 7, 1 << 16], ids=["bytes", "slivers", "whole"])
def test_line_of_another_api_is_refused_by_number(line: bytes, message: str, size: int) -> None:
    content = b"\n".join([ORDER, b" ", line, ORDER])
    with pytest.raises(Refused) as foreign:
        inspect("batch", *(content[start : start + size] for start in range(0, len(content), size)))
    assert (foreign.value.message, foreign.value.param) == (f"line 3: {message}", "file")


@pytest.mark.parametrize(
    "line",
    [
        ORDER,
        b'{"signature":"0x00","custom_id":null}',
        b'{"custom_id":"a"',  # invalid JSON is an error of the line, reported when a batch reads it
        b'["custom_id"]',
        b'{"body":"text"}',
        b"[" * 5000,
        b"\xff",
        b'{"custom_id":"a","body":{"x":"' + b"a" * MAX_CHECKED_LINE_BYTES + b'"}}',  # longer than the buffer
    ],
    ids=["an order", "no name", "no JSON", "a list", "no object", "deep", "no text", "long"],
)
def test_other_lines_are_left_to_the_batch(line: bytes) -> None:
    assert inspect("batch", line + b"\n", ORDER).line_count == 2


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
