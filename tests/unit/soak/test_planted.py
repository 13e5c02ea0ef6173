from pathlib import Path

import pytest

from tests.soak.planted.__main__ import PATCHES, PLANTED, names
from tests.soak.verdict import INVARIANTS
from tests.support.planted import plant


def test_every_patch_names_the_invariants_it_breaks() -> None:
    assert names() == sorted(PLANTED)
    assert {planted.breaks for planted in PLANTED.values()} <= set(INVARIANTS)


@pytest.mark.parametrize("name", names())
def test_patch_applies_to_the_tree_as_it_is(name: str, tmp_path: Path) -> None:
    """A patch that no longer applies must be rewritten for the changed code."""
    plant(PATCHES / f"{name}.patch", tmp_path / name)
