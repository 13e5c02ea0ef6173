"""A small language for a place inside a JSON value: `data.items[0].status`, `output[*].url`, `$` for the whole.

Names are separated by dots and stand for object members (`["odd name"]` where a name holds other signs); `[n]` is
a list's item (negative from its end), `[*]` all of them.
"""

import re
from typing import Final

import attrs

from common.refusal import Refused

_STEP: Final = re.compile(r'\.?([A-Za-z_][A-Za-z0-9_-]*)|\[(-?[0-9]{1,9})\]|\["([^"\\]+)"\]|\[(\*)\]', re.ASCII)


@attrs.frozen(slots=True)
class JsonPath:
    """A step is a member's name, an item's index, or None for every item."""

    steps: tuple[str | int | None, ...]

    @classmethod
    def parse(cls, text: str, param: str) -> "JsonPath":
        steps: list[str | int | None] = []
        position = 1 if text.startswith("$") else 0
        while position < len(text):
            step = _STEP.match(text, position)
            # A path begins with a bare name, everything after it (and after `$`) with a dot or a bracket.
            if step is None or (position > 0) is (step[0] == step[1]):
                raise Refused(f"{param} is no path into JSON: stuck at {text[position:]!r}", param)
            steps.append(step[1] or step[3] or (int(step[2]) if step[2] else None))
            position = step.end()
        if not text:
            raise Refused(f"{param} is an empty path; the whole value is $", param)
        return cls(tuple(steps))

    @property
    def is_single(self) -> bool:
        """Whether it names one place at most."""
        return None not in self.steps

    def find(self, value: object) -> list[object]:
        """Every value that is there, in order; where a step does not fit, nothing."""
        found = [value]
        for step in self.steps:
            found = [inner for outer in found for inner in _inside(outer, step)]
        return found

    def first(self, value: object) -> object | None:
        """The first value found; None also stands for null and for nothing there."""
        found = self.find(value)
        return found[0] if found else None


def _inside(value: object, step: str | int | None) -> list[object]:
    if isinstance(step, str):
        return [value[step]] if isinstance(value, dict) and step in value else []
    if not isinstance(value, list):
        return []
    if step is None:
        return value
    return [value[step]] if -len(value) <= step < len(value) else []
