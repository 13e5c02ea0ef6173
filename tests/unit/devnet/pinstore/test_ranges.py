import pytest

from devnet.pinstore.content import stretch_of


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-5", (2, 6)),
        ("bytes=2-", (2, 10)),
        ("bytes=2-99", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
    ],
)
def test_range_within_the_content_is_cut_to_it(header: str, expected: tuple[int, int]) -> None:
    stretch = stretch_of(header, 10)
    assert stretch is not None
    assert stretch.partial
    assert (stretch.start, stretch.stop) == expected
    assert stretch.headers["content-range"] == f"bytes {expected[0]}-{expected[1] - 1}/10"


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_range_outside_of_the_content_has_no_stretch(header: str) -> None:
    assert stretch_of(header, 10) is None


@pytest.mark.parametrize("header", [None, "bytes=-", "bytes=5-2", "bytes=0-1,4-5", "bytes=a-b", "items=0-1"])
def test_header_that_is_not_one_range_asks_for_everything(header: str | None) -> None:
    stretch = stretch_of(header, 10)
    assert stretch is not None
    assert (stretch.start, stretch.stop, stretch.partial, stretch.status) == (0, 10, False, 200)
