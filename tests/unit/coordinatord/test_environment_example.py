import re
from pathlib import Path

from coordinatord.run.config import variables

_EXAMPLE = Path(__file__).parents[3] / "config" / "coordinatord.env.example"
_ADDRESSES = {"ADDRESSES_FILE", "ADDRESSES_JSON"}  # read together, outside the fields


def _listed() -> dict[str, tuple[str, str]]:
    """By name: the sentence above it, and the value shown."""
    found = re.findall(r"^# (.+)\n#?([A-Z][A-Z0-9_]*)=(.*)$", _EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: (about, value) for about, name, value in found}


def test_example_lists_every_variable_and_no_other() -> None:
    listed = set(re.findall(r"^#?([A-Z][A-Z0-9_]*)=", _EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {field.metadata["variable"] for field in variables()} | _ADDRESSES


def test_example_says_of_each_what_the_configuration_says_and_shows_its_default() -> None:
    listed = _listed()
    for field in variables():
        name, default = field.metadata["variable"], field.metadata["default"]
        about, value = listed[name]
        assert about == field.metadata["about"]
        if isinstance(default, bool):
            assert value == str(default).lower()
        elif isinstance(default, int | str):
            assert value == str(default)
        else:
            assert value == ""
