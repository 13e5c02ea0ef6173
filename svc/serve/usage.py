"""Convert a provider's usage counts to the field names of chat completions or of responses."""

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]


def to_response_usage(usage: Mapping[str, Any]) -> JsonObject:
    """Return the counts under the field names of responses."""
    input_tokens = _first_count(usage.get("input_tokens"), usage.get("prompt_tokens"))
    output_tokens = _first_count(usage.get("output_tokens"), usage.get("completion_tokens"))
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": _read_detail(usage, ("input_tokens_details", "prompt_tokens_details"), "cached_tokens")
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {
            "reasoning_tokens": _read_detail(
                usage, ("output_tokens_details", "completion_tokens_details"), "reasoning_tokens"
            )
        },
        "total_tokens": _first_count(usage.get("total_tokens"), input_tokens + output_tokens),
    }


def to_chat_usage(usage: Mapping[str, Any]) -> JsonObject:
    """Return the counts under the field names of chat completions."""
    counted = to_response_usage(usage)
    return {
        "prompt_tokens": counted["input_tokens"],
        "completion_tokens": counted["output_tokens"],
        "total_tokens": counted["total_tokens"],
        "prompt_tokens_details": {**counted["input_tokens_details"], "audio_tokens": 0},
        "completion_tokens_details": {
            **counted["output_tokens_details"],
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _first_count(*values: object) -> int:
    return next((value for value in values if type(value) is int and value >= 0), 0)


def _read_detail(usage: Mapping[str, Any], groups: tuple[str, ...], name: str) -> int:
    found = [usage[group].get(name) for group in groups if isinstance(usage.get(group), Mapping)]
    return _first_count(*found)
