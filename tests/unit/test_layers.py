"""Layer rules that import-linter cannot express: SQL only in sql modules, HTTP only in routes."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.specification_client import client

COORDINATOR = Path(__file__).parents[2] / "coordinatord"
MODULES = sorted(path for path in COORDINATOR.rglob("*.py") if path.name != "__init__.py")
OF_CAPABILITIES = [path for path in MODULES if path.is_relative_to(COORDINATOR / "api")]
STATEMENT = re.compile(
    r"\s*(select|insert into|update \w+ (\w+ )?set|delete from|with \w+ as|listen |notify )", re.IGNORECASE
)


def named(path: Path) -> str:
    return str(path.relative_to(COORDINATOR))


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, as a whole or by name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            parts = node.module.split(".")
            modules = {
                alias.name for alias in node.names if COORDINATOR.parent.joinpath(*parts, f"{alias.name}.py").exists()
            }
            found |= {f"{node.module}.{name}" for name in modules} or {node.module}
    return found


def texts(path: Path) -> Iterator[str]:
    """Yield the string constants other than docstrings."""
    tree = ast.parse(path.read_text())
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@pytest.mark.parametrize("path", OF_CAPABILITIES, ids=named)
def test_routes_over_rules_over_sql(path: Path) -> None:
    known = {name for name in imports(path) if name.startswith("coordinatord.")}
    if path.name.endswith("routes.py"):
        return
    assert not any(name.startswith("coordinatord.http") or name.endswith(".routes") for name in known)
    if path.name.endswith("sql.py"):
        of_capabilities = {name for name in known if name.startswith("coordinatord.api.")}
        assert all(name.endswith("sql") for name in of_capabilities)


@pytest.mark.parametrize("path", [path for path in MODULES if not path.name.endswith("sql.py")], ids=named)
def test_sql_stands_in_sql_modules_and_the_database(path: Path) -> None:
    if not path.is_relative_to(COORDINATOR / "storage" / "database"):
        assert [text for text in texts(path) if STATEMENT.match(text)] == []


def test_every_capability_has_its_routes() -> None:
    with_routes = {path.parent for path in OF_CAPABILITIES if path.name == "routes.py"}
    assert with_routes == {path.parent for path in OF_CAPABILITIES}


SPAWNING = {"create_task", "ensure_future", "run_coroutine_threadsafe", "spawn_system_task", "spawn_trio_task"}
PRODUCT = [
    path
    for package in ("common", "coordinatord", "svcd", "svc", "devnet")
    for path in sorted((COORDINATOR.parent / package).rglob("*.py"))
    if "node_modules" not in path.parts
]


def spawned_outside_groups(tree: ast.AST) -> list[int]:
    """Return the lines that start a task outside of a task group. A group's method is called on an attribute named
    `_tasks`."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    parts = ((call.lineno, *ast.unparse(call.func).rpartition(".")) for call in calls)
    return [line for line, owner, _, name in parts if name in SPAWNING and not owner.endswith("_tasks")]


def test_no_task_is_started_outside_a_task_group() -> None:
    sources = {str(path): path.read_text(encoding="utf-8") for path in PRODUCT}
    suspects = {path: text for path, text in sources.items() if any(name in text for name in SPAWNING)}
    found = {path: spawned_outside_groups(ast.parse(text)) for path, text in suspects.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line", ["asyncio.create_task(work())", "asyncio.get_running_loop().create_task(work())", "ensure_future(work())"]
)
def test_a_task_outside_a_group_is_found(line: str) -> None:
    assert spawned_outside_groups(ast.parse(line)) == [1]


_FOLDER = Path(client.__file__).parent
_OURS = ("common", "coordinatord", "devnet", "svc", "svcd")
_SCRIPT = """
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & set({ours!r})))
"""


def test_specification_client_imports_nothing_of_this_project() -> None:
    names = [f"tests.support.specification_client.{path.stem}" for path in sorted(_FOLDER.glob("*.py"))]
    assert len(names) >= 3
    script = _SCRIPT.format(names=names, ours=_OURS)
    root = _FOLDER.parents[2]
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
