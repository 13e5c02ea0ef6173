"""Pages name only existing files, functions and headings, and the check of the documentation site finds each fault."""

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.check import problems
from docs.generate import coordinator_settings
from tests.vectors.vector_file import FOLDER, cases


def site_with(folder: Path, body: str) -> Path:
    for name, text in {"index.html": body, "guide/index.html": '<h1 id="start">Guide</h1>'}.items():
        page = folder / name
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)
    return folder


def test_sound_site_has_no_problems(tmp_path: Path) -> None:
    body = '<a href="guide/#start">a</a> <a href="https://example.org">b</a> <img src="data:image/png;base64,">'
    assert problems(site_with(tmp_path, body), ["guide.md"], "  - guide.md\n") == []


def test_each_fault_is_found(tmp_path: Path) -> None:
    body = (
        '<a href="guide/#end">a</a> <a href="none/">b</a> <img src="none.png">'
        '<script src="https://example.org/x.js"></script> <link href="//example.org/x.css">'
    )
    assert problems(site_with(tmp_path, body), ["guide.md", "orphan.md"], "  - guide.md\n") == [
        "index.html: loads //example.org/x.css from another host",
        "index.html: loads https://example.org/x.js from another host",
        "index.html: broken link guide/#end",
        "index.html: broken link none.png",
        "index.html: broken link none/",
        "mkdocs.yml: nav lacks orphan.md",
    ]


def test_settings_table_marks_required_and_secret_settings() -> None:
    rows = {row.split("`")[1]: row for row in coordinator_settings().splitlines()[2:]}
    assert "| required | secret |" in rows["DATABASE_URL"]
    assert "| `8402` | 1..65535 |" in rows["PORT"]


ROOT = Path(__file__).parents[2]
CONTRIBUTORS = (ROOT / "docs" / "contributors" / "order.md").read_text()
ROWS = re.findall(r"^\| `([\w/.]+)` \| (.+?) \|", CONTRIBUTORS, re.MULTILINE)
STEPS = [(file, name) for file, names in ROWS for name in re.findall(r"`([\w.]+)`", names)]


@pytest.mark.parametrize(("file", "name"), STEPS, ids=[f"{file}:{name}" for file, name in STEPS])
def test_step_is_there(file: str, name: str) -> None:
    body = ast.parse((ROOT / file).read_text()).body
    for part in name.split("."):
        [found] = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == part
        ]
        body = found.body


def test_map_names_every_folder_of_the_coordinator() -> None:
    named = set(
        re.findall(r"^\| `(\w+)/` \|", (ROOT / "docs" / "contributors" / "architecture.md").read_text(), re.MULTILINE)
    )
    folders = [*(ROOT / "coordinatord").iterdir(), *(ROOT / "coordinatord" / "api").iterdir()]
    there = {folder.name for folder in folders if (folder / "__init__.py").exists()}
    assert named == there


FOLDERS = ("coordinatord", "svcd", "svc", "devnet", "common", "config", "docs", "systemd", "tests", "examples")


def _files_in(top: str) -> Iterator[Path]:
    """Yield the folder's files, without files of packages, builds and caches."""
    for folder, folders, files in os.walk(ROOT / top):
        folders[:] = set(folders) - {"node_modules", "__pycache__", "out", "cache"}
        yield from (Path(folder, file) for file in files)


PAGES = sorted(
    page
    for top in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *FOLDERS)
    for page in ([ROOT / top] if top.endswith(".md") else _files_in(top))
    if page.suffix == ".md"
)
NAMED = re.compile(r"`((?:\w[\w.-]*/)*\w[\w-]*\.(?:py|sol|sql|mjs))`")


def test_source_files_that_pages_name_exist() -> None:
    """A path may start at the top or at any folder, so pages cannot name a moved or merged file."""
    files = ["/" + path.relative_to(ROOT).as_posix() for top in FOLDERS for path in _files_in(top)]
    missing = {
        (str(page.relative_to(ROOT)), name)
        for page in PAGES
        for name in set(NAMED.findall(page.read_text()))
        if not any(file.endswith("/" + name) for file in files)
    }
    assert missing == set()


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
