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
