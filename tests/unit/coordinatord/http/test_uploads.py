import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.daemon.asgi import Message, Receive
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.http.bodies import BodyBudget, ClientDisconnected, UnacceptableBody
from coordinatord.http.upload_forms import FORM_OVERHEAD_BYTES, FileTooLarge, UploadForm, read_form_boundary
from coordinatord.http.uploads import INITIAL_UPLOAD_MEMORY_BYTES, MAX_UPLOAD_MEMORY_BYTES, TransferLimits, UploadReader
from tests.unit.coordinatord.http.asgi import receiving

PURPOSE = 'form-data; name="purpose"'
FILE = 'form-data; name="file"; filename="a.jsonl"'


def form(*parts: tuple[str, bytes], closing: bytes = b"--b--\r\n") -> bytes:
    return b"".join(
        b"--b\r\ncontent-disposition: " + disposition.encode() + b"\r\n\r\n" + content + b"\r\n"
        for disposition, content in parts
    ) + (closing if closing else b"")


def form_of(body: bytes, *, size: int = 65_536, most: int = 1 << 20) -> UploadForm:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    return UploadForm(b"b", pieces(), most)


async def read(body: bytes, *, size: int = 65_536, most: int = 1 << 20) -> tuple[str, str, bytes]:
    upload = form_of(body, size=size, most=most)
    purpose, filename = await upload.read_purpose(), await upload.read_filename()
    return purpose, filename, b"".join([piece async for piece in upload.pieces()])


# Content with byte sequences that resemble a boundary, mixed with plain text.
_CONTENT = st.lists(st.sampled_from([b"\r\n", b"--b", b"\r\n--", b"\r\n--bx", b"--b--", b"\0", b"text"])).map(b"".join)


@given(_CONTENT.filter(lambda content: b"\r\n--b" not in b"\r\n" + content + b"\r\n"), st.integers(1, 40))
def test_file_is_read_for_any_chunking(content: bytes, size: int) -> None:
    assert anyio.run(lambda: read(form((PURPOSE, b"batch"), (FILE, content)), size=size)) == (
        "batch",
        "a.jsonl",
        content,
    )


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        (((FILE, b"x"), (PURPOSE, b"batch")), "purpose"),
        (((FILE, b"x"),), "purpose"),
        ((), "purpose"),
        (((PURPOSE, b"batch"),), "file"),
        (((PURPOSE, b"batch"), (FILE, b"x"), (FILE, b"y")), "file"),
        (((PURPOSE, b"batch"), (PURPOSE, b"batch"), (FILE, b"x")), "purpose"),
        (((PURPOSE, b"batch"), (FILE, b"x"), (PURPOSE, b"batch")), "purpose"),
        (((PURPOSE, b"batch"), ('form-data; name="other"', b"x"), (FILE, b"x")), "other"),
        (((PURPOSE, b"batch"), (FILE, b"x"), ('form-data; name="other"', b"x")), "other"),
        (((PURPOSE, b"batch"), ("form-data; filename=a", b"x")), None),
        (((PURPOSE, b"batch"), ("attachment; name=file; filename=a", b"x")), None),
        (((PURPOSE, b"batch"), ('form-data; name="file"', b"x")), "file"),
    ],
    ids=[
        "file before purpose", "no purpose", "no parts", "no file", "two files", "two purposes", "purpose again after",
        "another part", "another part after", "no name", "no form-data", "no filename",
    ],
)  # fmt: skip
async def test_form_that_is_not_a_purpose_and_then_one_file_is_refused(
    parts: tuple[tuple[str, bytes], ...], param: str | None
) -> None:
    with pytest.raises(Refused) as refused:
        await read(form(*parts))
    assert (refused.value.param, refused.value.code) == (param, None)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("a.jsonl", "a.jsonl"),
        ("/etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("C:\\fakepath\\a.jsonl", "a.jsonl"),
        ('quoted\\"name', 'quoted"name'),
        ("日本.jsonl", "日本.jsonl"),
        ("a%0D%0Ab", "a%0D%0Ab"),
        ("n" * 255, "n" * 255),
        ("n" * 256, None),
        ("", None),
        ("folder/", None),
        ("a\nb", None),
        ("a\tb", None),
        ("a\0b", None),
        ("a\x85b", None),
    ],
)
async def test_filename_is_kept_without_folders_or_refused(sent: str, kept: str | None) -> None:
    body = form((PURPOSE, b"batch"), (f'form-data; name="file"; filename="{sent}"', b"x"))
    if kept is None:
        with pytest.raises(Refused):
            await read(body)
    else:
        assert (await read(body))[1] == kept


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no form",
        form((PURPOSE, b"batch"), (FILE, b"x"), closing=b""),
        form((PURPOSE, b"batch"), (FILE, b"x"), closing=b"--b"),
        b"--b\r\ncontent-disposition: " + PURPOSE.encode() + b"\rX",
        b"--b\r\n" + b"x: y\r\n" * 9 + b"\r\n",
        b"--b\r\nx: " + b"y" * 3000,
        b"--b\r\ncontent-disposition: form-data; name=file\r\ncontent-disposition: form-data; name=purpose\r\n\r\n",
        form((PURPOSE, b"batch"), ('form-data; name="file"; filename="\xff"'.encode("latin-1").decode("latin-1"), b"x"))
        .replace("ÿ".encode(), b"\xff"),
    ],
    ids=["empty", "no form", "not closed", "cut in the boundary", "bare CR in a header", "many headers", "long header",
         "two dispositions", "name that is no text"],
)  # fmt: skip
async def test_malformed_form_is_refused(body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        await read(body)
    assert refused.value.code is None


ANCHOR = ('form-data; name="expires_after[anchor]"', b"created_at")
SECONDS = ('form-data; name="expires_after[seconds]"', b"3600")


@pytest.mark.parametrize(
    "parts",
    [
        ((PURPOSE, b"batch"), ANCHOR, SECONDS, (FILE, b"x")),
        ((PURPOSE, b"batch"), (FILE, b"x"), ANCHOR, SECONDS),
        (ANCHOR, (PURPOSE, b"batch"), SECONDS, (FILE, b"x")),
    ],
    ids=["before the file", "after the file", "before the purpose"],
)
async def test_expires_after_may_come_anywhere(parts: tuple[tuple[str, bytes], ...]) -> None:
    upload = form_of(form(*parts), size=5)
    assert (await upload.read_purpose(), await upload.read_filename()) == ("batch", "a.jsonl")
    assert b"".join([piece async for piece in upload.pieces()]) == b"x"
    assert upload.expires_after == {"anchor": "created_at", "seconds": "3600"}


async def test_expires_after_twice_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        await read(form((PURPOSE, b"batch"), SECONDS, (FILE, b"x"), SECONDS))
    assert refused.value.param == "expires_after[seconds]"


async def test_long_purpose_is_unknown() -> None:
    with pytest.raises(Refused) as refused:
        await read(form((PURPOSE, b"p" * 65), (FILE, b"x")))
    assert refused.value.code == "invalid_purpose"


async def test_file_over_the_limit_ends_as_soon_as_it_is() -> None:
    assert (await read(form((PURPOSE, b"batch"), (FILE, b"x" * 100)), most=100))[2] == b"x" * 100
    with pytest.raises(FileTooLarge):
        await read(form((PURPOSE, b"batch"), (FILE, b"x" * 101), closing=b""), most=100)


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "multipart/mixed; boundary=b"])
def test_other_content_types_are_refused(kind: str) -> None:
    with pytest.raises(Refused):
        read_form_boundary(kind)


def test_boundary_too_long_for_a_form_is_refused() -> None:
    with pytest.raises(Refused):
        UploadForm(b"b" * 300, aiter_nothing(), 1)


async def aiter_nothing() -> AsyncIterator[bytes]:
    return
    yield b""


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
