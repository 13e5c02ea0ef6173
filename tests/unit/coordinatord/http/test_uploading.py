import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import anyio
import pytest

from common.daemon.asgi import Message, Receive
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.http.bodies import BodyBudget, ClientDisconnected, UnacceptableBody
from coordinatord.http.upload_forms import FORM_OVERHEAD_BYTES
from coordinatord.http.uploads import INITIAL_UPLOAD_MEMORY_BYTES, MAX_UPLOAD_MEMORY_BYTES, TransferLimits, UploadReader
from tests.unit.coordinatord.http.asgi import receiving
from tests.unit.coordinatord.http.test_forms import FILE, PURPOSE, form

pytestmark = pytest.mark.anyio

HEADERS = {"content-type": "multipart/form-data; boundary=b"}


def raw_headers(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


FORM = form((PURPOSE, b"batch"), (FILE, b"x" * 1000))


def reader(
    budget: BodyBudget | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    transfers: TransferLimits | None = None,
    max_bytes: int = 1000,
) -> UploadReader:
    return UploadReader(
        budget or BodyBudget(MAX_UPLOAD_MEMORY_BYTES),
        transfers or TransferLimits(8, 8),
        max_bytes=max_bytes,
        min_bytes_per_s=1000,
        stall_timeout_s=60,
        clock=clock,
    )


async def upload(
    uploads: UploadReader,
    receive: Receive,
    headers: dict[str, str] | None = None,
    caller: str = "honest",
    wallet: bytes = b"wallet",
) -> bytes:
    async with uploads.open_form(receive, raw_headers(HEADERS | (headers or {})), caller, wallet) as form:
        await form.read_purpose()
        await form.read_filename()
        return b"".join([piece async for piece in form.pieces()])


def pieces(body: bytes, size: int = 100) -> list[bytes | None]:
    return [body[start : start + size] for start in range(0, len(body), size)]


def waits(seconds: Iterable[float]) -> Callable[[], float]:
    """Return a clock on which waiting for the n-th piece takes the n-th number of seconds, and processing between
    pieces a minute."""

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
    for headers in ({}, {"content-length": str(2000 + FORM_OVERHEAD_BYTES)}):
        with pytest.raises(UnacceptableBody) as refused:
            await upload(reader(), receiving(pieces(larger)), headers)
        assert refused.value.response.status == 413


async def test_endless_trailer_of_a_form_is_413() -> None:
    endless = itertools.chain([FORM], itertools.repeat(b"z" * 10_000, 20))
    with pytest.raises(UnacceptableBody) as refused:
        await upload(reader(), receiving(endless))
    assert refused.value.response.status == 413


async def test_only_waiting_for_the_caller_counts_against_it() -> None:
    few = pieces(FORM, 300)
    assert await upload(reader(clock=waits([5.1, 0, 0, 0, 0])), receiving(few)) == b"x" * 1000
    with pytest.raises(UnacceptableBody) as slow:
        await upload(reader(clock=waits([0.1, 6.0, 0, 0, 0])), receiving(few))
    assert slow.value.response.status == 408


async def test_caller_that_stalls_is_given_up() -> None:
    async def never() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    stalled = UploadReader(
        BodyBudget(MAX_UPLOAD_MEMORY_BYTES),
        TransferLimits(1, 1),
        max_bytes=1000,
        min_bytes_per_s=1,
        stall_timeout_s=0.01,
    )
    with pytest.raises(UnacceptableBody) as slow:
        await upload(stalled, never)
    assert slow.value.response.status == 408


async def test_caller_who_goes_away_midway_is_noticed() -> None:
    with pytest.raises(ClientDisconnected):
        await upload(reader(), receiving([FORM[:200], None]))


async def test_rest_of_a_refused_form_is_read() -> None:
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


def begun(uploads: UploadReader, caller: str, wallet: bytes, size: int = 900) -> AbstractAsyncContextManager[object]:
    """Begin an upload of this declared length, of which nothing has arrived."""
    headers = raw_headers(HEADERS | {"content-length": str(size)})
    return uploads.open_form(receiving([FORM]), headers, caller, wallet)


async def test_upload_uses_memory_as_it_arrives() -> None:
    uploads = reader(
        BodyBudget(16 * INITIAL_UPLOAD_MEMORY_BYTES + INITIAL_UPLOAD_MEMORY_BYTES),
        transfers=TransferLimits(99, 99),
        max_bytes=MAX_UPLOAD_MEMORY_BYTES,
    )
    async with AsyncExitStack() as silent:
        for n in range(16):
            await silent.enter_async_context(begun(uploads, f"stranger {n}", b"stranger", MAX_UPLOAD_MEMORY_BYTES))
        assert await upload(uploads, receiving(pieces(FORM))) == b"x" * 1000


async def test_uploads_beyond_the_memory_are_busy() -> None:
    uploads = reader(BodyBudget(2 << 20), max_bytes=8 << 20)
    large = form((PURPOSE, b"batch"), (FILE, b"x" * (3 << 20)))
    with pytest.raises(Retryable) as busy:
        await upload(uploads, receiving(pieces(large, 1 << 16)))
    assert busy.value.kind == "busy"
    small = form((PURPOSE, b"batch"), (FILE, b"x" * (1 << 20)))
    assert len(await upload(uploads, receiving(pieces(small, 1 << 16)))) == 1 << 20


async def test_upload_memory_is_limited() -> None:
    uploads = reader(BodyBudget(MAX_UPLOAD_MEMORY_BYTES), max_bytes=4 * MAX_UPLOAD_MEMORY_BYTES)
    large = form((PURPOSE, b"batch"), (FILE, bytes(MAX_UPLOAD_MEMORY_BYTES + (2 << 20))))
    assert len(await upload(uploads, receiving(pieces(large, 1 << 18)))) == MAX_UPLOAD_MEMORY_BYTES + (2 << 20)


async def test_uploads_of_one_caller_leave_room_for_anothers() -> None:
    uploads = reader(BodyBudget(4 * INITIAL_UPLOAD_MEMORY_BYTES, max_caller_bytes=INITIAL_UPLOAD_MEMORY_BYTES))
    async with begun(uploads, "stranger", b"stranger"):
        with pytest.raises(Retryable):
            await upload(uploads, receiving(pieces(FORM)), caller="stranger")
        assert await upload(uploads, receiving(pieces(FORM))) == b"x" * 1000


@pytest.mark.parametrize(
    ("caller", "wallet", "whose"),
    [
        ("stranger", b"third", "one address may run at most 2 "),
        ("elsewhere", b"first", "one wallet may run at most 1 "),
    ],
)
async def test_uploads_beyond_caller_or_wallet_limits_are_busy(caller: str, wallet: bytes, whose: str) -> None:
    uploads = reader(transfers=TransferLimits(max_per_address=2, max_per_wallet=1))
    async with begun(uploads, "stranger", b"first"), begun(uploads, "stranger", b"second"):
        with pytest.raises(Retryable, match=whose) as busy:
            await upload(uploads, receiving(pieces(FORM)), caller=caller, wallet=wallet)
        assert busy.value.kind == "busy"
        assert await upload(uploads, receiving(pieces(FORM))) == b"x" * 1000
    assert await upload(uploads, receiving(pieces(FORM)), caller=caller, wallet=wallet) == b"x" * 1000
