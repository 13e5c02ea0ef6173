"""The log pages explain every warning and error of the daemons. The page of the worked order shows its vectors."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from coordinatord.api.orders.bodies import OrderBody, read_submission
from coordinatord.api.provider_ops.ops import SettleOp, read_op
from tests.vectors.vector_file import Case, cases

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


_WHOLE = (Path(__file__).parents[2] / "docs" / "protocol" / "vectors.md").read_text("utf-8")
PAGE = _WHOLE.split("\n## The worked order\n")[1].split("\n## ")[0]
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = [text for kind, text in FENCED if not kind]
SUBMISSION, OUTPUT, SETTLE = (json.loads(text) for kind, text in FENCED if kind == "json")


@pytest.fixture(name="one")
def _one() -> Case:
    [one] = cases("worked_order.json")
    return one


def values() -> dict[str, str]:
    """Return each value of the page by its name. A value is the indented lines below the name."""
    found: dict[str, str] = {}
    for block in BLOCKS:
        for name, lines in re.findall(r"^(\w+)\n((?:    .*\n)+)", block, re.MULTILINE):
            assert name not in found
            found[name] = "".join(line[4:] for line in lines.splitlines())
        assert len(re.findall(r"^\S.*\n", block, re.MULTILINE)) == len(re.findall(r"^\w+\n    ", block, re.MULTILINE))
    return found


def test_every_value_is_that_of_the_vectors(one: Case) -> None:
    told = {name: json.dumps(value, separators=(",", ":")) for name, value in one.items() if isinstance(value, dict)}
    assert values() == {name: told.get(name, value) for name, value in one.items() if name != "name"}


def test_submission_is_the_order_of_the_vectors(one: Case) -> None:
    assert isinstance(read_submission(SUBMISSION), OrderBody)
    order = one["order"]
    told = {
        "c": order["c"],
        "model_id": order["modelId"],
        "sla_secs": order["slaSecs"],
        "rate_in": order["rateIn"],
        "rate_out": order["rateOut"],
        "units_in": order["unitsIn"],
        "units_out": order["unitsOut"],
        "designated": order["designated"],
        "expires_at": order["expiresAt"],
        "owner": one["owner"],
        "job_id": one["job_id"],
        "signature": one["order_signature"],
        "auth_sig": one["auth_sig"],
        "amount": one["amount"],
        "container": one["container"],
    }
    assert {name: str(value) for name, value in SUBMISSION.items()} == told


def test_settle_is_the_op_of_the_vectors(one: Case) -> None:
    assert isinstance(read_op(SETTLE), SettleOp)
    assert {name: str(value) for name, value in SETTLE.items()} == {
        "op": "settle",
        "job_id": one["job_id"],
        "completion_tok": one["completion_tok"],
        "issued_at": one["settle_issued_at"],
        "result": one["sealed_result"],
        "signature": one["settle_signature"],
    }
