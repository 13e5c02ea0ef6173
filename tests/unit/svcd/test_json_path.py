import pytest

from common.refusal import Refused
from svcd.base.json_path import JsonPath

VALUE = {"data": {"items": [{"url": "a"}, {"url": "b"}, {}], "odd name": 1}, "none": None}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", [VALUE]),
        ("data.items[0].url", ["a"]),
        ("$.data.items[-2].url", ["b"]),
        ("data.items[*].url", ["a", "b"]),
        ('data["odd name"]', [1]),
        ("none", [None]),
        ("data.items[3]", []),
        ("data.items.url", []),
        ("data[0]", []),
        ("missing.deeper", []),
    ],
)
def test_a_path_finds_what_is_there_and_nothing_else(path: str, found: list[object]) -> None:
    assert JsonPath.parse(path).select(VALUE) == found


def test_a_list_at_the_root_is_reached_by_a_bracket() -> None:
    assert JsonPath.parse("$[1].a").select_first([{}, {"a": 5}]) == 5


@pytest.mark.parametrize("path", ["", ".a", "a..b", "a.", "a b", "a[", "a[x]", "a[1.5]", "$a", "a$", 'a[""]', "[*"])
def test_text_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(Refused):
        JsonPath.parse(path)
