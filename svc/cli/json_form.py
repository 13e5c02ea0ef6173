"""Convert records for `--json`. Integers above 2^53 − 1, which many JSON readers round, become decimal strings."""

from typing import Any, Final

_MAX_SAFE_INTEGER: Final = 2**53 - 1


def to_plain_values(value: Any) -> Any:
    """Return a record as dicts, lists and scalars, with large integers as decimal strings.

    >>> to_plain_values({"amount": 2**53, "units": [7]})
    {'amount': '9007199254740992', 'units': [7]}
    """
    import msgspec  # noqa: PLC0415 - slow import, needed only for output

    return _to_safe_value(msgspec.to_builtins(value))


def _to_safe_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _to_safe_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_safe_value(each) for each in value]
    if type(value) is int and abs(value) > _MAX_SAFE_INTEGER:
        return str(value)
    return value
