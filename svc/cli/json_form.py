"""Records as `--json` shows them: plain values, and decimal strings for integers that JSON's readers would round."""

from typing import Any, Final

_LARGEST_SAFE: Final = 2**53 - 1


def wire_form(value: Any) -> Any:
    """
    >>> wire_form({"amount": 2**53, "units": [7]})
    {'amount': '9007199254740992', 'units': [7]}
    """
    import msgspec  # noqa: PLC0415 - for answers alone

    return _safe(msgspec.to_builtins(value))


def _safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _safe(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(each) for each in value]
    if type(value) is int and abs(value) > _LARGEST_SAFE:
        return str(value)
    return value
