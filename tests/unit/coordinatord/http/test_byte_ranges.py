import pytest

from coordinatord.http.byte_ranges import ByteRange, UnsatisfiableRange, resolve_byte_range


@pytest.mark.parametrize(
    ("header", "stretch"),
    [
        ("bytes=0-0", (0, 0)),
        ("bytes=2-", (2, 9)),
        ("bytes=2-5", (2, 5)),
        ("bytes=2-99", (2, 9)),
        ("bytes=-3", (7, 9)),
        ("bytes=-99", (0, 9)),
        (None, None),
        ("bytes=-", None),
        ("bytes=5-2", None),
        ("bytes=0-1,3-4", None),
        ("bytes=١-", None),
        ("items=0-1", None),
    ],
)
def test_single_range_is_clipped_and_others_are_ignored(header: str | None, stretch: tuple[int, int] | None) -> None:
    assert resolve_byte_range(header, 10) == (None if stretch is None else ByteRange(*stretch))


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=99-100", 10), ("bytes=-0", 10), ("bytes=-5", 0), ("bytes=0-", 0)]
)
def test_range_outside_of_the_content_is_unsatisfiable(header: str, size: int) -> None:
    with pytest.raises(UnsatisfiableRange):
        resolve_byte_range(header, size)
