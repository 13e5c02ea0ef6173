"""The examples in the client's docstrings do what they say."""

import doctest
import importlib
import pkgutil

import pytest

import svc

_MODULES = [found.name for found in pkgutil.walk_packages(svc.__path__, "svc.") if not found.name.endswith("__main__")]


@pytest.mark.parametrize("name", _MODULES)
def test_examples_of_the_module_hold(name: str) -> None:
    ran = doctest.testmod(importlib.import_module(name))
    assert ran.failed == 0


def test_there_are_examples() -> None:
    found = doctest.DocTestFinder(exclude_empty=True)
    tests = [test for name in _MODULES for test in found.find(importlib.import_module(name))]
    assert sum(len(test.examples) for test in tests) > 10
