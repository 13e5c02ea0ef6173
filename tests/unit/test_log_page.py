"""The page of the log names every event that the daemons log, with its level and fields, and no other."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "common" / "LOG.md"
SOURCES = {"coordinatord": ("coordinatord", "common/daemon"), "svcd": ("svcd", "common/daemon")}
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
# Not of an event's own: an exception's stack, and what every line has.
OF_EVERY_LINE = {"event", "level", "timestamp"}


@attrs.frozen(order=True)
class LogEvent:
    name: str
    level: str
    fields: tuple[str, ...]


def logged(daemon: str) -> set[LogEvent]:
    """Every call of a module's `log`. A part of a name that is not known before is `…`."""
    found = set()
    for source in SOURCES[daemon]:
        for path in (ROOT / source).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if is_log_call(node):
                    assert isinstance(node, ast.Call)
                    assert isinstance(node.func, ast.Attribute)
                    fields = [keyword.arg or "…" for keyword in node.keywords if keyword.arg != "exc_info"]
                    for name in names(node.args[0]):
                        level = LEVELS[node.func.attr]
                        extra = ["exception"] if node.func.attr == "exception" else []
                        found.add(LogEvent(name, level, tuple(sorted([*fields, *extra]))))
    return found


def is_log_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LEVELS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
    )


def names(argument: ast.expr) -> Iterator[str]:
    match argument:
        case ast.Constant(value=str(name)):
            yield name
        case ast.IfExp(body=body, orelse=orelse):
            yield from names(body)
            yield from names(orelse)
        case ast.BinOp(left=ast.Constant(value=str(name))):
            yield f"{name}…"
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
        case _:
            raise AssertionError(f"an event must be written out where it is logged: {ast.unparse(argument)}")


def documented(daemon: str) -> list[LogEvent]:
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {daemon}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \| ([^|]*) \| \S[^|]{8,} \|$", section, re.MULTILINE)
    return [LogEvent(name, level, tuple(sorted(re.findall(r"`([^`]+)`", fields)))) for name, level, fields in rows]


@pytest.mark.parametrize("daemon", SOURCES)
def test_the_page_has_every_event_that_is_logged_and_no_other(daemon: str) -> None:
    rows = documented(daemon)
    assert len(set(rows)) == len(rows)
    assert sorted(rows) == sorted(logged(daemon))


def test_an_event_that_is_not_on_the_page_would_be_found() -> None:
    (call,) = [node for node in ast.walk(ast.parse("log.warning('new', a=1)")) if is_log_call(node)]
    assert isinstance(call, ast.Call)
    assert list(names(call.args[0])) == ["new"]
    assert LogEvent("new", "warning", ("a",)) not in set(documented("coordinatord"))


def test_every_example_is_a_line_of_json_of_an_event_on_the_page_with_its_fields() -> None:
    text = PAGE.read_text(encoding="utf-8")
    examples = [json.loads(line) for line in re.findall(r"^\{.*\}$", text, re.MULTILINE)]
    assert len(examples) >= 6
    events = {(event.name, event.level, event.fields) for daemon in SOURCES for event in documented(daemon)}
    for example in examples:
        fields = tuple(sorted(set(example) - OF_EVERY_LINE))
        assert (example["event"], example["level"], fields) in events, example
