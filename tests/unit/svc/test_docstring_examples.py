"""Runs the examples in docstrings. Examples of the synchronous client need a market and run in tests/integration."""

import doctest
import importlib
import pkgutil

import pytest

import svc

FOUND = [module.name for module in pkgutil.walk_packages(svc.__path__, "svc.") if module.name != "svc.sync_client"]


@pytest.mark.parametrize("name", FOUND)
def test_examples_show_what_happens(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    shown = {name for name in FOUND if any(test.examples for test in _tests(name))}
    assert {
        "svc.core.windows",
        "svc.core.money",
        "svc.core.model_input",
        "svc.settings",
        "svc.signers",
    } <= shown


def _tests(name: str) -> list[doctest.DocTest]:
    return doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
