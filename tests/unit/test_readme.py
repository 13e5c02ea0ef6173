"""The pages name only existing files and functions."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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
