import re
from pathlib import Path

from coordinatord.run.config import setting_rows, variable_names

_EXAMPLE = Path(__file__).parents[3] / "config" / "coordinatord.env.example"


def _listed() -> dict[str, tuple[str, str]]:
    """Return by name: the comment above the variable, and its value."""
    found = re.findall(r"^# (.+)\n#?([A-Z][A-Z0-9_]*)=(.*)$", _EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: (about, value) for about, name, value in found}


def test_example_lists_every_setting() -> None:
    listed = re.findall(r"^#?([A-Z][A-Z0-9_]*)=", _EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(variable_names())


def test_example_has_the_meaning_and_default_of_every_setting() -> None:
    listed = _listed()
    for row in setting_rows({}):
        about, value = listed[row.name]
        assert about == row.meaning
        assert value == (row.default or "") or row.name == "ADDRESSES_FILE"
