"""Secret value that is never printed: not in a repr, a log line or a traceback of attrs values."""

import attrs


@attrs.frozen(slots=True, repr=False, str=False)
class Secret:
    """Read it with `reveal()`, at the one place that needs it."""

    _value: str

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "<SECRET>"
