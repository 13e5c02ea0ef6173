import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.box import SecretKey
from common.container import commit, seal
from common.refusal import Refused
from coordinatord.files.inspection import BLANK, MOST_LINES, Inspected, inspection_of
from coordinatord.files.sql import Purpose

CONTAINER = seal(SecretKey(b"\x07" * 32).public, 1, b"\x01" * 20, b"\x02" * 20, b"payload" * 20_000)


def inspect(purpose: Purpose, *pieces: bytes) -> Inspected:
    inspection = inspection_of(purpose)
    for piece in pieces:
        inspection.update(piece)
    return inspection.finish()


@given(st.lists(st.text(alphabet="ab \t\r\n", max_size=20).map(str.encode)))
def test_lines_that_are_not_blank_are_counted_however_the_file_is_cut(pieces: list[bytes]) -> None:
    lines = sum(bool(line.strip(BLANK)) for line in b"".join(pieces).split(b"\n"))
    if lines:
        assert inspect("batch", *pieces) == Inspected(lines=lines)
    else:
        with pytest.raises(Refused) as empty:
            inspect("batch", *pieces)
        assert empty.value.code == "empty_file"


@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n \n"])
def test_batch_of_the_most_lines_passes_and_one_more_is_refused(last: bytes) -> None:
    whole = b"\n".join([b"{}"] * MOST_LINES) + last
    assert inspect("batch", whole).lines == MOST_LINES
    with pytest.raises(Refused) as many:
        inspect("batch", whole, b"\n{}")
    assert many.value.code == "too_many_lines"


def test_container_yields_its_commitment() -> None:
    assert inspect("input", CONTAINER[:50], CONTAINER[50:]).commitment == commit(CONTAINER).c


@pytest.mark.parametrize(
    "content",
    [b"\x01short", b"\x02" + CONTAINER[1:], CONTAINER[: 81 + 24 + 65_553 + 5]],
    ids=["short", "version", "cut"],
)
def test_what_is_no_container_is_refused(content: bytes) -> None:
    with pytest.raises(Refused) as bad:
        inspect("input", content)
    assert (bad.value.code, bad.value.param) == ("bad_container", "file")


@pytest.mark.parametrize("purpose", ["input", "result", "batch"])
def test_file_without_a_byte_is_empty(purpose: Purpose) -> None:
    with pytest.raises(Refused) as empty:
        inspect(purpose, b"")
    assert empty.value.code == "empty_file"
    if purpose == "result":
        assert inspect(purpose, b"", b"\0") == Inspected()
