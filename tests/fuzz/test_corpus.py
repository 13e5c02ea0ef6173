"""Replay the seeds and the kept corpus of every fuzz target."""

import importlib

import pytest

from tests.fuzz.target import FAMILIES, NAMES, target_of


@pytest.mark.parametrize("name", NAMES)
def test_what_was_kept_for_a_target_holds(name: str) -> None:
    target = target_of(name)
    inputs = [b"", *target.seeds(), *target.corpus()]
    assert len(inputs) > 1
    for data in inputs:
        target.replay(data)


def test_every_target_of_a_family_is_listed() -> None:
    for family, names in FAMILIES.items():
        assert tuple(target.name for target in importlib.import_module(f"tests.fuzz.{family}").TARGETS) == names
