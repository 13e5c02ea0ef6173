"""Check an input against the parameter schema that a model publishes.

Only `type`, `minimum`, `maximum`, `enum`, `oneOf`, `items` and `properties` are evaluated; other keywords are ignored.
The chain stores any text as a schema, so a malformed part of a schema allows every value.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeGuard

from common.pricing.model_input import OUTPUT_CAP_PARAMS, Input, read_count
from common.refusal import Refused


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPE_CHECKS: Final[dict[str, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list | tuple),
    "null": lambda value: value is None,
}


def check_parameters(schema: Mapping[str, Any] | None, model_input: Input) -> tuple[str, ...]:
    """Return the parameters that the schema does not list. The model may ignore these parameters.

    Raises Refused for a parameter whose subschema is false or does not match. Even without a schema,
    `reasoning_max_tokens` must be below the output cap, and `min_tokens` must not exceed it.
    """
    _check_output_caps(model_input)
    if not schema:
        return ()
    problem = next(_find_problems(schema, model_input, ""), None)
    if problem is not None:
        raise problem
    listed = schema.get("properties")
    return tuple(name for name in model_input if isinstance(listed, Mapping) and name not in listed)


def _check_output_caps(model_input: Input) -> None:
    caps = [read_count(model_input[name], name) for name in OUTPUT_CAP_PARAMS if model_input.get(name) is not None]
    if not caps:
        return
    cap = min(caps)
    reasoning, minimum = model_input.get("reasoning_max_tokens"), model_input.get("min_tokens")
    if _is_number(reasoning) and reasoning >= cap:
        raise Refused(f"reasoning_max_tokens must be below the output cap of {cap}", "reasoning_max_tokens")
    if _is_number(minimum) and minimum > cap:
        raise Refused(f"min_tokens must not be above the output cap of {cap}", "min_tokens")


def _find_problems(schema: object, value: object, path: str) -> Iterator[Refused]:
    if schema is False:
        yield Refused(f"{path} is not accepted by this model", path)
    if not isinstance(schema, Mapping):
        return
    yield from _find_value_problems(schema, value, path)
    choices = schema.get("oneOf")
    if isinstance(choices, list):
        matches = sum(next(_find_problems(choice, value, path), None) is None for choice in choices)
        if matches != 1:
            yield Refused(
                f"{_parameter_name(path)} must match exactly one of {len(choices)} forms, but matches {matches}", path
            )
    items = schema.get("items")
    if items is not None and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _find_problems(items, item, f"{path}[{index}]")
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and isinstance(value, Mapping):
        for name, subschema in properties.items():
            if name in value:
                yield from _find_problems(subschema, value[name], f"{path}.{name}" if path else name)


def _find_value_problems(schema: Mapping[str, Any], value: object, path: str) -> Iterator[Refused]:
    wanted = schema.get("type")
    kinds = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    checks = [_TYPE_CHECKS[kind] for kind in kinds if isinstance(kind, str) and kind in _TYPE_CHECKS]
    if checks and not any(check(value) for check in checks):
        yield Refused(f"{_parameter_name(path)} must be of type {' or '.join(map(str, kinds))}", path)
    if _is_number(value):
        minimum, maximum = schema.get("minimum"), schema.get("maximum")
        if _is_number(minimum) and value < minimum:
            yield Refused(f"{_parameter_name(path)} must be at least {minimum}", path)
        if _is_number(maximum) and value > maximum:
            yield Refused(f"{_parameter_name(path)} must be at most {maximum}", path)
    allowed = schema.get("enum")
    if isinstance(allowed, list) and not any(_equal_json(value, choice) for choice in allowed):
        yield Refused(f"{_parameter_name(path)} must be one of {', '.join(map(str, allowed))}", path)


def _equal_json(left: object, right: object) -> bool:
    """Compare two JSON values. True equals 1 in Python, but not in JSON."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _parameter_name(path: str) -> str:
    return path or "the input"
