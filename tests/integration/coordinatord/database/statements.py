"""Find the daemon's SQL statements in its source: all strings that start like SQL, with constants of their module
filled in.

Parameters and computed parts of a function are not constants. `parts` lists their possible values, as expressions of
the module. Statements that remove due rows are found through the calls of `remove_due`.
"""

import ast
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from coordinatord.storage.database.removal_sql import remove_due

_ROOT: Final = Path(__file__).parents[4]
_BEGINS: Final = re.compile(
    r"\s*(select\s|with\s+(recursive\s+)?\w+(\s*\([\w, ]+\))? as |update \w+ (?!.*`)|insert into |delete from )"
)
_OPENS: Final = re.compile(r"\s*(select|with|update|insert into|delete from)\s")
_READS: Final = re.compile(r"\b(select|from|update)\b")
Parts = Mapping[str, Sequence[Mapping[str, str]]]


@attrs.frozen
class Statement:
    """`place` is module and function, as in `book.sql.read_page`. `sql` is missing (None) if some part is unknown."""

    place: str
    line: int
    sql: str | None
    missing: str = ""


def statements(parts: Parts) -> Iterator[Statement]:
    """Return all statements. `parts` maps a place to expressions for names in its statements, one per planned
    variant."""
    for path in sorted((_ROOT / "coordinatord").rglob("*.py")):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        found = [pair for pair in _texts(ast.parse(path.read_text(encoding="utf-8")), "") if _may_be_sql(pair[0])]
        scope = vars(importlib.import_module(name)) if found else {}
        for expression, function in found:
            place = f"{name.removeprefix('coordinatord.')}.{function}".rstrip(".")
            for given in parts.get(place, [{}]):
                yield from _filled(expression, scope, place, given)


def _filled(expression: ast.expr, scope: dict[str, Any], place: str, given: Mapping[str, str]) -> Iterator[Statement]:
    known = dict(scope)
    for name, spelled in given.items():
        known[name] = eval(spelled, known)  # noqa: S307 - the test's own
    code = compile(ast.fix_missing_locations(ast.Expression(expression)), place, "eval")
    try:
        text = eval(code, known)  # noqa: S307 - the daemon's source
    except (NameError, KeyError) as missing:
        yield Statement(place, expression.lineno, None, str(missing))
        return
    if isinstance(text, str) and _BEGINS.match(text):
        yield Statement(place, expression.lineno, text)


def _texts(node: ast.AST, function: str) -> Iterator[tuple[ast.expr, str]]:
    """Yield outermost strings, f-strings and concatenations, with the function that contains them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant | ast.JoinedStr | ast.BinOp):
            if not isinstance(node, ast.Expr):  # not a docstring
                yield child, function
        elif _is_removal(child):
            yield _removal(child), function
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _texts(child, f"{function}.{child.name}" if function else child.name)
        elif isinstance(child, ast.ClassDef):
            yield from _texts(child, child.name)
        else:
            yield from _texts(child, function)


def _may_be_sql(expression: ast.expr) -> bool:
    """Check the first words, unless they are computed."""
    first: ast.AST = expression
    while isinstance(first, ast.BinOp):
        first = first.left
    if isinstance(first, ast.JoinedStr) and first.values:
        if isinstance(first.values[0], ast.FormattedValue):
            return bool(_READS.search(ast.unparse(first)))
        first = first.values[0]
    return isinstance(first, ast.Constant) and isinstance(first.value, str) and bool(_OPENS.match(first.value))


def _is_removal(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == remove_due.__name__


def _removal(node: Any) -> ast.expr:  # a call, see `_is_removal`
    template = "'delete from ' + str({0}) + ' where ctid = any(array(select ctid from ' + str({0})"
    spelled = (template + " + ' where ' + {1} + ' limit 10000))'").format(*map(ast.unparse, node.args[1:3]))
    expression = ast.parse(spelled, mode="eval").body
    for part in ast.walk(expression):
        ast.copy_location(part, node)
    return expression
