"""The pages name only existing files and functions."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRIBUTORS = (ROOT / "docs" / "contributors" / "order.md").read_text()
ROWS = re.findall(r"^\| `([\w/.]+)` \| (.+?) \|", CONTRIBUTORS, re.MULTILINE)
STEPS = [(file, name) for file, names in ROWS for name in re.findall(r"`([\w.]+)`", names)]


def test_page_follows_an_order_from_the_client_to_the_result() -> None:
    assert STEPS[0][0].startswith("svc/")
    assert {"coordinatord", "svcd"} < {file.split("/")[0] for file, _ in STEPS}
    assert STEPS[-1][0].startswith("svc/")


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


PAGES = sorted(
    page
    for top in (
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "examples",
        "coordinatord",
        "svcd",
        "svc",
        "devnet",
        "common",
        "config",
        "systemd",
        "tests",
        "docs",
    )
    for page in ([ROOT / top] if top.endswith(".md") else (ROOT / top).rglob("*.md"))
    if page.exists() and "node_modules" not in page.parts
)
FILES = {
    path.relative_to(ROOT).as_posix()
    for top in ("coordinatord", "svcd", "svc", "devnet", "common", "config", "docs", "systemd", "tests", "examples")
    for path in (ROOT / top).rglob("*")
    if path.is_file() and not {"node_modules", "__pycache__", "out", "cache"} & set(path.parts)
}
NAMED = re.compile(r"`((?:\w[\w.-]*/)*\w[\w-]*\.(?:py|sol|sql|mjs))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_file_that_a_page_names_is_there(page: Path) -> None:
    """A path may start at the top or at any folder, so pages cannot name a moved or merged file."""
    named = set(NAMED.findall(page.read_text()))
    assert {name for name in named if not any(file == name or file.endswith("/" + name) for file in FILES)} == set()
