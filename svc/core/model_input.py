"""Read the model input and the custom id of an order."""

from collections.abc import Mapping

from common.envelope import MAX_CUSTOM_ID_CODE_POINTS
from common.refusal import Refused

ModelInput = str | Mapping[str, object]


def model_input(value: ModelInput) -> dict[str, object]:
    """Return the input object. A string becomes `{"input": …}`.

    >>> model_input("hello")
    {'input': 'hello'}
    """
    if isinstance(value, str):
        return {"input": value}
    if not isinstance(value, Mapping):
        raise Refused("input must be a string or an object", "input")
    return dict(value)


def read_custom_id(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CUSTOM_ID_CODE_POINTS:
        raise Refused(f"custom_id must be a string of 1 to {MAX_CUSTOM_ID_CODE_POINTS} characters", "custom_id")
    return value
