"""The README's "One order followed": every file and function that it names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = re.search(r"^## One order followed$.*?(?=^## )", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
assert SECTION is not None
ROWS = re.findall(r"^\| `([\w/.]+)` \| (.+?) \|", SECTION[0], re.MULTILINE)
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
    named = set(re.findall(r"^\| `(\w+)/` \|", (ROOT / "coordinatord" / "ARCHITECTURE.md").read_text(), re.MULTILINE))
    there = {folder.name for folder in (ROOT / "coordinatord").iterdir() if (folder / "__init__.py").exists()}
    assert named == there
