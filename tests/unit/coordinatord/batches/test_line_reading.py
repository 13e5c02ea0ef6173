from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import anyio
import pytest

from coordinatord.api.batches.line_reader import FileCursor, LineReader
from coordinatord.base.errors import Retryable

pytestmark = pytest.mark.anyio


class Held:
    """A stored file that records the sizes of reads."""

    def __init__(self, content: bytes, gives: int | None = None) -> None:
        self.content = content
        self.largest = 0
        self._gives = gives

    @asynccontextmanager
    async def read(self, first: int, last: int) -> AsyncIterator[AsyncIterator[bytes]]:
        self.largest = max(self.largest, last + 1 - first)
        part = self.content[first : last + 1][: self._gives]

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(part), 7):
                yield part[start : start + 7]

        yield pieces()


async def all_lines(held: Held, **settings: int) -> tuple[list[tuple[int, bytes | None]], FileCursor]:
    reader = LineReader(held.read, len(held.content), **settings)
    lines: list[tuple[int, bytes | None]] = []
    cursor = FileCursor(0, 0)
    while cursor.offset < len(held.content):
        stretch = await reader.read_lines(cursor)
        assert stretch.next_cursor.offset > cursor.offset
        lines += [(line.number, line.text) for line in stretch.lines]
        cursor = stretch.next_cursor
    return lines, cursor


@pytest.mark.parametrize("window", [1, 3, 8, 1000])
@pytest.mark.parametrize("most_lines", [1, 2, 100])
async def test_lines_are_independent_of_the_window(window: int, most_lines: int) -> None:
    held = Held(b"one\n\ntwo two\n \t\r\nthree\r\n\n")
    lines, end = await all_lines(held, chunk_bytes=window, max_lines=most_lines)
    assert lines == [(1, b"one"), (3, b"two two"), (5, b"three\r")]
    assert end == FileCursor(len(held.content), 6)


async def test_last_line_may_lack_its_newline() -> None:
    assert (await all_lines(Held(b"one\ntwo"), chunk_bytes=4))[0] == [(1, b"one"), (2, b"two")]


async def test_line_that_is_too_long_is_passed_over_without_being_held() -> None:
    held = Held(b"one\n" + b"x" * 1000 + b"\ntwo\n")
    lines, _ = await all_lines(held, chunk_bytes=8, max_line_bytes=100)
    assert lines == [(1, b"one"), (2, None), (3, b"two")]
    assert held.largest <= 256
    assert (await all_lines(Held(b"x" * 1000), chunk_bytes=8, max_line_bytes=100))[0] == [(1, None)]


async def test_line_longer_than_a_window_is_whole() -> None:
    line = bytes(range(32, 127)) * 5
    assert (await all_lines(Held(line + b"\nnext"), chunk_bytes=8))[0] == [(1, line), (2, b"next")]


async def test_truncated_store_answer_is_an_error() -> None:
    held = Held(b"one\ntwo\nthree\n", gives=5)
    with pytest.raises(Retryable) as trouble:
        await LineReader(held.read, len(held.content)).read_lines(FileCursor(0, 0))
    assert trouble.value.code == "store_unavailable"


async def test_store_that_sends_more_than_was_requested_is_stopped() -> None:
    sent = count()

    @asynccontextmanager
    async def read(first: int, last: int) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            while next(sent) < 1000:
                yield b"1234567890"

        yield pieces()

    with pytest.raises(Retryable, match="more of the input file"):
        await LineReader(read, 100).read_lines(FileCursor(0, 0))
    assert next(sent) < 20


async def test_store_that_falls_silent_does_not_hold_the_worker() -> None:
    @asynccontextmanager
    async def read(first: int, last: int) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"1"
            await anyio.sleep_forever()

        yield pieces()

    with pytest.raises(Retryable, match="too slowly"), anyio.fail_after(10):
        await LineReader(read, 100, timeout_s=0.01).read_lines(FileCursor(0, 0))
