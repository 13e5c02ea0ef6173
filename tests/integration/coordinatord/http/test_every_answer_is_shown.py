"""Fail if a response in the specification is not shown by any test of this folder."""

import importlib
from pathlib import Path
from types import ModuleType

from tests.integration.coordinatord.scene.specification import SPECIFICATION


def _marks(module: ModuleType) -> set[tuple[str, int, str | None]]:
    shown = set()
    for test in vars(module).values():
        for mark in getattr(test, "pytestmark", []) if callable(test) else []:
            if mark.name == "shows":
                shown.add(mark.args)
            if mark.name == "parametrize":
                for case in mark.args[1]:
                    shown |= {m.args for m in getattr(case, "marks", ()) if m.name == "shows"}
    return shown


def test_every_specified_answer_is_shown_by_a_test() -> None:
    folder = Path(__file__).parents[1]
    names = sorted(".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.glob("*/test_*.py"))
    shown = set()
    for name in names:
        shown |= _marks(importlib.import_module(f"tests.integration.coordinatord.{name}"))
    wanted = {(route, status, code) for route, answers in SPECIFICATION.items() for status, code in answers}
    assert wanted - shown == set()
    assert shown - wanted == set()
