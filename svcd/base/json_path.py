"""Select values in JSON by a path: `data.items[0].status`, `output[*].url`, or `$` for the whole value.

A name selects an object's member. Dots separate names, and `["odd name"]` quotes a name with other characters. `[n]`
selects an item of a list, counted from the end if `n` is negative. `[*]` selects every item.
"""

import re
from typing import Final, Self

import attrs

from common.refusal import Refused

_STEP_PATTERN: Final = re.compile(r'\.?([A-Za-z_][A-Za-z0-9_-]*)|\[(-?[0-9]{1,9})\]|\["([^"\\]+)"\]|\[(\*)\]', re.ASCII)


@attrs.frozen(slots=True)
class JsonPath:
    """Path of steps: a member's name, an item's index, or None for every item."""

    steps: tuple[str | int | None, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        steps: list[str | int | None] = []
        position = 1 if text.startswith("$") else 0
        while position < len(text):
            step = _STEP_PATTERN.match(text, position)

            # The first step has no dot, unless it follows `$`. Every later step starts with a dot or a bracket.
            if step is None or (position > 0) is (step[0] == step[1]):
                raise Refused(
                    f"must be a path into JSON, such as data[0].id; {text[position:]!r} is not a step of a path"
                )
            steps.append(step[1] or step[3] or (int(step[2]) if step[2] else None))
            position = step.end()
        if not text:
            raise Refused("must not be empty (write $ for the whole value)")
        return cls(tuple(steps))

    @property
    def is_single(self) -> bool:
        """Return True if the path selects at most one value."""
        return None not in self.steps

    def select(self, value: object) -> list[object]:
        """Return the selected values, in order."""
        found = [value]
        for step in self.steps:
            found = [inner for outer in found for inner in _select_members(outer, step)]
        return found

    def select_first(self, value: object) -> object | None:
        """Return the first selected value, or None if the value is null or missing."""
        found = self.select(value)
        return found[0] if found else None


def _select_members(value: object, step: str | int | None) -> list[object]:
    if isinstance(step, str):
        return [value[step]] if isinstance(value, dict) and step in value else []
    if not isinstance(value, list):
        return []
    if step is None:
        return value
    return [value[step]] if -len(value) <= step < len(value) else []
