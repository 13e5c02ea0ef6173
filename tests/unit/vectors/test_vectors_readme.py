"""The page of the vectors names every file, every field and every failure class, and no others."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.conformance.vectors import Asked
from tests.vectors.vector_file import FOLDER, PATTERN, cases, pattern

PAGE = (FOLDER.parents[1] / "docs" / "protocol" / "vectors.md").read_text("utf-8")
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
SECTIONS = dict(re.findall(r"^## (\w+\.json)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def named(name: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", SECTIONS[name]))


def rows(name: str) -> Iterator[str]:
    """Yield the names in the first columns of a section's tables."""
    for first in re.findall(r"^\| ([^|]*) \|", SECTIONS[name], re.MULTILINE):
        yield from re.findall(r"`([\w.]+)`", first)


def test_page_has_a_section_for_each_file() -> None:
    assert sorted(SECTIONS) == FILES


@pytest.mark.parametrize("name", FILES)
def test_section_names_every_field_and_failure(name: str) -> None:
    fields = {field for case in cases(name) for field in case} - {"name", "refused"}
    failures = {case["refused"] for case in cases(name) if "refused" in case}
    assert fields | failures <= named(name)
    assert set(rows(name)) <= fields | failures | {"refused"}


def told_of(name: str) -> dict[str, str]:
    """Return each field's description, from the second column of a section's table of fields."""
    [table] = re.findall(r"^\| field \| \| meaning \|\n\|[-|]+\|\n((?:\|.*\n)+)", SECTIONS[name], re.MULTILINE)
    told: dict[str, str] = {}
    for first, column in re.findall(r"^\| ([^|]*) \| ([^|]*) \|", table, re.MULTILINE):
        fields, words = re.findall(r"`([\w.]+)`", first), column.split(", ")
        told |= dict(zip(fields, words * len(fields) if len(words) == 1 else words, strict=True))
    return told


# job_id.json has one formula instead of fields
@pytest.mark.parametrize("name", [name for name in FILES if name != "job_id.json"])
def test_section_tells_what_is_given_from_what_follows(name: str) -> None:
    seen: dict[str, set[str]] = {}
    for case in cases(name):
        asked = Asked.of(name.removesuffix(".json"), case)
        for field in case.keys() - {"name", "refused"}:
            seen.setdefault(field, set()).add("in" if field in asked.given else "–" if field == "param" else "out")
    assert told_of(name) == {field: "either" if len(ways) > 1 else next(iter(ways)) for field, ways in seen.items()}


@pytest.mark.parametrize("name", FILES)
def test_section_says_whether_anything_is_refused(name: str) -> None:
    refuses = any("refused" in case for case in cases(name))
    assert ("Nothing is refused here." in SECTIONS[name]) != refuses


@pytest.mark.parametrize("name", FILES)
def test_section_names_every_kind(name: str) -> None:
    kinds = {case[field] for case in cases(name) for field in ("kind", "reader") if field in case}
    assert kinds <= named(name)


def test_byte_order_mark_is_said_of_the_class_that_its_case_has() -> None:
    [marked] = [case for case in cases("strict_json.json") if case["name"] == "a byte order mark"]
    told = [row for row in SECTIONS["strict_json.json"].splitlines() if "byte order mark" in row]
    assert [row.split("|")[1].strip(" `") for row in told] == [marked["refused"]]


def test_pattern_is_the_one_on_the_page() -> None:
    assert PATTERN in PAGE
    told = pattern(65_537)
    first = re.search(r"bytes are `([0-9a-f ]+)`", PAGE)
    assert first is not None
    assert told[:8] == bytes.fromhex(first[1])
    at = {int(place.replace(",", "")): byte for place, byte in re.findall(r"byte ([\d,]+) is `(\w\w)`", PAGE)}
    assert set(at) == {255, 256, 65_535, 65_536}
    assert {place: told[place : place + 1].hex() for place in at} == at


@pytest.mark.parametrize("name", FILES)
def test_vector_file_needs_no_other_file(name: str) -> None:
    text = json.loads((FOLDER / name).read_text("utf-8"))
    assert ".py" not in text["description"]
    assert {"description", "cases"} == set(text)


LONG_HEX = re.compile(r"0x[0-9a-f]{32,}|(?=\d*[a-f])[0-9a-f]{32,}")  # hex, but not decimal strings
# fields with text, and signed messages that contain their own nonces
NOT_HEX = ("text", "json", "name", "message", "receipt")


def test_files_write_hex_as_the_page_says() -> None:
    bare, prefixed = re.findall(r"\((`[^)]+`)\) write", PAGE.replace("\n  ", " "))
    for names, prefix in ((bare, False), (prefixed, True)):
        files = {f"{name}.json" for name in re.findall(r"`(\w+)`", names)} & set(FILES)
        assert len(files) > 5
        values = [case[field] for name in files for case in cases(name) for field in case.keys() - set(NOT_HEX)]
        told = [value for value in values if isinstance(value, str) and LONG_HEX.fullmatch(value)]
        assert told
        assert {value.startswith("0x") for value in told} == {prefix}
