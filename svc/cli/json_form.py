"""Records as `--json` shows them. Integers above 2^53 − 1, which many JSON readers round, become decimal strings."""

from typing import Any, Final

_MAX_SAFE_INTEGER: Final = 2**53 - 1


def wire_form(value: Any) -> Any:
    """Return a record as plain values.

    >>> wire_form({"amount": 2**53, "units": [7]})
    {'amount': '9007199254740992', 'units': [7]}
    """
    import msgspec  # noqa: PLC0415 - slow import, needed only for output

    return _safe(msgspec.to_builtins(value))


def _safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _safe(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(each) for each in value]
    if type(value) is int and abs(value) > _MAX_SAFE_INTEGER:
        return str(value)
    return value
