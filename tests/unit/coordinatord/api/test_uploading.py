import itertools
from collections.abc import Callable, Iterable, Iterator

import anyio
import pytest
from starlette.datastructures import Headers
from starlette.types import Message, Receive

from common.refusal import Refused
from coordinatord.api.bodies import BodyBudget, CallerGone, Unacceptable
from coordinatord.api.forms import OVERHEAD_BYTES
from coordinatord.api.uploading import HELD_BYTES, UploadReader
from coordinatord.trouble import Retryable
from tests.unit.coordinatord.api.asgi import receiving
from tests.unit.coordinatord.api.test_forms import FILE, PURPOSE, form

pytestmark = pytest.mark.anyio

HEADERS = {"content-type": "multipart/form-data; boundary=b"}
FORM = form((PURPOSE, b"batch"), (FILE, b"x" * 1000))


def reader(budget: BodyBudget | None = None, clock: Callable[[], float] = lambda: 0.0) -> UploadReader:
    return UploadReader(budget or BodyBudget(HELD_BYTES), most_bytes=1000, least_rate=1000, stall_s=60, clock=clock)


async def upload(
    uploads: UploadReader, receive: Receive, headers: dict[str, str] | None = None, caller: str = "honest"
) -> bytes:
    async with uploads.reading(receive, Headers(HEADERS | (headers or {})), caller) as form:
        await form.purpose()
        await form.filename()
        return b"".join([piece async for piece in form.pieces()])


def pieces(body: bytes, size: int = 100) -> list[bytes | None]:
    return [body[start : start + size] for start in range(0, len(body), size)]


def waits(seconds: Iterable[float]) -> Callable[[], float]:
    """A clock: while we wait for the n-th piece, so many seconds pass; between pieces, a minute of our own."""

    def times() -> Iterator[float]:
        now = 0.0
        for wait in seconds:
            yield now
            now += wait
            yield now
            now += 60

    ticking = times()
    return lambda: next(ticking)


async def test_file_up_to_the_limit_is_read_and_one_byte_more_is_413() -> None:
    assert await upload(reader(), receiving(pieces(FORM))) == b"x" * 1000
    larger = form((PURPOSE, b"batch"), (FILE, b"x" * 1001))
    for headers in ({}, {"content-length": str(2000 + OVERHEAD_BYTES)}):
        with pytest.raises(Unacceptable) as refused:
            await upload(reader(), receiving(pieces(larger)), headers)
        assert refused.value.answer.status == 413


async def test_what_follows_the_form_without_end_is_413() -> None:
    endless = itertools.chain([FORM], itertools.repeat(b"z" * 10_000, 20))
    with pytest.raises(Unacceptable) as refused:
        await upload(reader(), receiving(endless))
    assert refused.value.answer.status == 413


async def test_waiting_for_the_caller_counts_against_it_and_nothing_else_does() -> None:
    few = pieces(FORM, 300)
    assert await upload(reader(clock=waits([5.1, 0, 0, 0, 0])), receiving(few)) == b"x" * 1000
    with pytest.raises(Unacceptable) as slow:
        await upload(reader(clock=waits([0.1, 6.0, 0, 0, 0])), receiving(few))
    assert slow.value.answer.status == 408


async def test_caller_that_stalls_is_given_up() -> None:
    async def never() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    stalled = UploadReader(BodyBudget(HELD_BYTES), most_bytes=1000, least_rate=1, stall_s=0.01)
    with pytest.raises(Unacceptable) as slow:
        await upload(stalled, never)
    assert slow.value.answer.status == 408


async def test_caller_who_goes_away_midway_is_noticed() -> None:
    with pytest.raises(CallerGone):
        await upload(reader(), receiving([FORM[:200], None]))


async def test_rest_of_a_refused_form_is_read_so_that_the_answer_arrives() -> None:
    left = iter(pieces(b"no form" + b"." * 1000))
    seen = []

    async def receive() -> Message:
        seen.append(piece := next(left, b""))
        return {"type": "http.request", "body": piece, "more_body": len(seen) < 11}

    with pytest.raises(Refused):
        await upload(reader(), receive)
    assert len(seen) == 11


async def test_encoded_form_is_refused_unread() -> None:
    with pytest.raises(Refused):
        await upload(reader(), receiving([]), {"content-encoding": "gzip"})


async def test_uploads_beyond_the_memory_for_them_are_busy_and_what_ended_is_given_back() -> None:
    uploads = reader(BodyBudget(HELD_BYTES + 2000))
    async with uploads.reading(receiving([]), Headers(HEADERS), "other"):
        with pytest.raises(Retryable) as busy:
            await upload(uploads, receiving(pieces(FORM)), {"content-length": "2001"})
        assert busy.value.kind == "busy"
        assert await upload(uploads, receiving(pieces(FORM)), {"content-length": "2000"})
    assert await upload(uploads, receiving(pieces(FORM)), {"content-length": "2001"})


async def test_uploads_of_one_caller_leave_room_for_anothers() -> None:
    uploads = reader(BodyBudget(2 * HELD_BYTES, most_of_one=HELD_BYTES))
    async with uploads.reading(receiving([]), Headers(HEADERS), "stranger"):  # of unknown length: it may hold the most
        with pytest.raises(Retryable):
            await upload(uploads, receiving(pieces(FORM)), caller="stranger")
        assert await upload(uploads, receiving(pieces(FORM))) == b"x" * 1000
