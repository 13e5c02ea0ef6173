"""The log pages explain every warning and error that the daemons log, and nothing more."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]
PAGES = {"coordinatord": ROOT / "docs/operators/log.md", "svcd": ROOT / "docs/providers/log.md"}
SOURCES = {"coordinatord": ("coordinatord", "common/daemon"), "svcd": ("svcd", "common/daemon")}
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}


@attrs.frozen(order=True)
class LogEvent:
    name: str
    level: str


def logged(daemon: str) -> set[LogEvent]:
    """Return the event of every call of a module's `log`. `…` replaces a computed part of a name."""
    found = set()
    for source in SOURCES[daemon]:
        texts = [path.read_text(encoding="utf-8") for path in (ROOT / source).rglob("*.py")]
        for text in (text for text in texts if "log." in text):
            for node in ast.walk(ast.parse(text)):
                if is_log_call(node):
                    assert isinstance(node, ast.Call)
                    assert isinstance(node.func, ast.Attribute)
                    found |= {LogEvent(name, LEVELS[node.func.attr]) for name in names(node.args[0])}
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
    page = PAGES[daemon].read_text(encoding="utf-8")
    rows = []
    for heading, level in (("Errors", "error"), ("Warnings", "warning")):
        section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        cells = re.findall(r"^\| (`[^|]+`) \| \S[^|]{8,} \|$", section, re.MULTILINE)
        rows += [LogEvent(name, level) for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return rows


@pytest.mark.parametrize("daemon", PAGES)
def test_page_has_every_warning_and_error(daemon: str) -> None:
    expected = [event for event in logged(daemon) if event.level in ("warning", "error")]
    assert len(expected) > 10
    assert sorted(documented(daemon)) == sorted(expected)


@pytest.mark.parametrize("daemon", PAGES)
def test_example_is_an_event_of_the_page(daemon: str) -> None:
    [line] = re.findall(r"^\{.*\}$", PAGES[daemon].read_text(encoding="utf-8"), re.MULTILINE)
    example = json.loads(line)
    assert LogEvent(example["event"], example["level"]) in documented(daemon)
