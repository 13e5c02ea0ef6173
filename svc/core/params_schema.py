"""Checks an input against the parameter schema that a model publishes.

Evaluated are `type`, `minimum`, `maximum`, `enum`, `oneOf`, `items` and `properties`; other keywords are not looked
at, so that a schema may say more than a client knows. A schema is somebody's free text on the chain: where it is
malformed it constrains nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeGuard

from common.pricing.model_input import OUTPUT_CAPS, Input, read_count
from common.refusal import Refused


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


_IS: Final[dict[str, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list | tuple),
    "null": lambda value: value is None,
}


def check_parameters(schema: Mapping[str, Any] | None, model_input: Input) -> tuple[str, ...]:
    """The names of parameters that the schema does not list: they are sent, but the model may not know them.

    Refuses, naming the parameter, one that the schema sets to false and one that fails its subschema; and, whatever
    the schema, a reasoning or minimum length that leaves no room under the output cap.
    """
    _check_lengths(model_input)
    if not schema:
        return ()
    problem = next(_problems(schema, model_input, ""), None)
    if problem is not None:
        raise problem
    listed = schema.get("properties")
    return tuple(name for name in model_input if isinstance(listed, Mapping) and name not in listed)


def _check_lengths(model_input: Input) -> None:
    caps = [read_count(model_input[name], name) for name in OUTPUT_CAPS if model_input.get(name) is not None]
    if not caps:
        return
    cap = min(caps)
    reasoning, least = model_input.get("reasoning_max_tokens"), model_input.get("min_tokens")
    if _is_number(reasoning) and reasoning >= cap:
        raise Refused(f"reasoning_max_tokens must be below the output cap of {cap}", "reasoning_max_tokens")
    if _is_number(least) and least > cap:
        raise Refused(f"min_tokens must not be above the output cap of {cap}", "min_tokens")


def _problems(schema: object, value: object, place: str) -> Iterator[Refused]:
    if schema is False:
        yield Refused(f"{place} is not taken by this model", place)
    if not isinstance(schema, Mapping):
        return
    yield from _plain_problems(schema, value, place)
    choices = schema.get("oneOf")
    if isinstance(choices, list):
        fitting = sum(next(_problems(choice, value, place), None) is None for choice in choices)
        if fitting != 1:
            yield Refused(f"{_at(place)} must fit exactly one of {len(choices)} forms and fits {fitting}", place)
    items = schema.get("items")
    if items is not None and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _problems(items, item, f"{place}[{index}]")
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and isinstance(value, Mapping):
        for name, subschema in properties.items():
            if name in value:
                yield from _problems(subschema, value[name], f"{place}.{name}" if place else name)


def _plain_problems(schema: Mapping[str, Any], value: object, place: str) -> Iterator[Refused]:
    wanted = schema.get("type")
    kinds = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    checks = [_IS[kind] for kind in kinds if isinstance(kind, str) and kind in _IS]
    if checks and not any(check(value) for check in checks):
        yield Refused(f"{_at(place)} must be of type {' or '.join(map(str, kinds))}", place)
    if _is_number(value):
        least, most = schema.get("minimum"), schema.get("maximum")
        if _is_number(least) and value < least:
            yield Refused(f"{_at(place)} must be at least {least}", place)
        if _is_number(most) and value > most:
            yield Refused(f"{_at(place)} must be at most {most}", place)
    allowed = schema.get("enum")
    if isinstance(allowed, list) and not any(_same(value, one) for one in allowed):
        yield Refused(f"{_at(place)} must be one of {', '.join(map(str, allowed))}", place)


def _same(one: object, other: object) -> bool:
    """JSON's equality: to Python, True equals 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _at(place: str) -> str:
    return place or "the input"
