from typing import Any

import pytest

from common.refusal import Refused
from svc.core.params_schema import check_parameters

SCHEMA = {
    "properties": {
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 100},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "mode": {"enum": ["fast", "good", 1]},
        "stop": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "number": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        "tools": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "x": False}}},
        "maybe": {"type": ["string", "null"]},
        "flag": {"type": "boolean"},
        "long": {"type": "integer"},
        "stream": False,
        "free": True,
        "odd": {"type": "unheard-of", "minimum": "low", "pattern": "^a$"},
    }
}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_tokens": 1},
        {"max_tokens": 100.0},
        {"long": 10**400},
        {"temperature": 0.5},
        {"mode": 1},
        {"stop": "a"},
        {"stop": ["a", "b"]},
        {"number": 1.5},
        {"tools": [{"name": "a", "unlisted": 1}, {}]},
        {"maybe": None},
        {"flag": False},
        {"free": {"any": "thing"}},
        {"odd": "zzz"},
    ],
)
def test_fitting_parameters_are_taken(given: dict[str, Any]) -> None:
    assert check_parameters(SCHEMA, given) == ()


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_tokens": 50, "temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"mode": "slow"}, "mode"),
        ({"mode": True}, "mode"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"number": 1}, "number"),  # matches both types
        ({"tools": {"name": "a"}}, "tools"),
        ({"tools": [{}, {"name": 5}]}, "tools[1].name"),
        ({"tools": [{"x": 1}]}, "tools[0].x"),
        ({"flag": 0}, "flag"),
        ({"stream": False}, "stream"),
    ],
)
def test_invalid_parameter_is_named_by_its_path(given: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        check_parameters(SCHEMA, given)
    assert refused.value.param == param


def test_unlisted_parameters_are_named() -> None:
    assert check_parameters(SCHEMA, {"mode": "fast", "top_k": 5, "seed": 1}) == ("top_k", "seed")


@pytest.mark.parametrize("schema", [None, {}, {"type": "object"}, {"properties": "broken"}])
def test_schema_that_lists_nothing_warns_of_nothing(schema: dict[str, Any] | None) -> None:
    assert check_parameters(schema, {"anything": 1}) == ()


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"max_tokens": 10, "reasoning_max_tokens": 10}, "reasoning_max_tokens"),
        ({"max_output_tokens": 50, "max_completion_tokens": 10, "reasoning_max_tokens": 20}, "reasoning_max_tokens"),
        ({"max_tokens": 10, "min_tokens": 11}, "min_tokens"),
    ],
)
def test_lengths_beyond_the_smallest_cap_are_refused(given: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        check_parameters(None, given)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "given",
    [
        {"reasoning_max_tokens": 10, "min_tokens": 10},
        {"max_tokens": 10, "reasoning_max_tokens": 9},
        {"max_tokens": 10, "min_tokens": 10},
    ],
)
def test_lengths_under_the_cap_or_without_one_are_taken(given: dict[str, Any]) -> None:
    assert check_parameters(None, given) == ()
