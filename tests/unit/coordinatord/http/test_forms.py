from collections.abc import AsyncIterator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.refusal import Refused
from coordinatord.http.upload_forms import FileTooLarge, UploadForm, read_form_boundary

pytestmark = pytest.mark.anyio

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
