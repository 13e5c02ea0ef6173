"""Relative links in Markdown outside of docs/ lead to existing files and headings. `make docs` checks docs/."""

import re
from pathlib import Path

import pytest

from tests.unit.test_readme import PAGES, ROOT

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    found = []
    for link in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if not page.is_relative_to(ROOT / "docs")], ids=str)
def test_relative_links_resolve(page: Path) -> None:
    assert broken(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One two\n\n[a](#one-two) [b](page.md#three) [c](none.md) [d](https://example.org)\n")
    assert broken(page) == ["page.md#three", "none.md"]
