"""The page of the vectors names every file, every field and every failure class, and no others."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.vectors.vector_file import FOLDER, cases

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


@pytest.mark.parametrize("name", FILES)
def test_vector_file_needs_no_other_file(name: str) -> None:
    text = json.loads((FOLDER / name).read_text("utf-8"))
    assert ".py" not in text["description"]
    assert {"description", "cases"} == set(text)
