"""Usage as a provider counted it, in the words of chat completions or of responses."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def usage_of_response(usage: Mapping[str, Any]) -> Json:
    """A count in the words of responses, from either route's words."""
    asked = _whole(usage.get("input_tokens"), usage.get("prompt_tokens"))
    given = _whole(usage.get("output_tokens"), usage.get("completion_tokens"))
    return {
        "input_tokens": asked,
        "input_tokens_details": {
            "cached_tokens": _detail(usage, ("input_tokens_details", "prompt_tokens_details"), "cached_tokens")
        },
        "output_tokens": given,
        "output_tokens_details": {
            "reasoning_tokens": _detail(
                usage, ("output_tokens_details", "completion_tokens_details"), "reasoning_tokens"
            )
        },
        "total_tokens": _whole(usage.get("total_tokens"), asked + given),
    }


def usage_of_chat(usage: Mapping[str, Any]) -> Json:
    """A count in the words of chat completions, from either route's words."""
    counted = usage_of_response(usage)
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


def _whole(*values: object) -> int:
    return next((value for value in values if type(value) is int and value >= 0), 0)


def _detail(usage: Mapping[str, Any], groups: tuple[str, ...], name: str) -> int:
    found = [usage[group].get(name) for group in groups if isinstance(usage.get(group), Mapping)]
    return _whole(*found)
