"""Read the list of models of a server with OpenAI's routes.

The `owned_by` of a model identifies vLLM, SGLang, llama.cpp, Ollama and LMDeploy.
"""

import json
from collections.abc import Mapping
from typing import Final

import attrs
import httpx

from svc.wire.answers import body_of, opened

MODELS_ROUTE: Final = "/v1/models"
_MAX_LIST_BYTES: Final = 4 << 20
_OWNERS: Final = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "library": "Ollama",
    "lmdeploy": "LMDeploy",
}
# With a single model loaded, these servers ignore the requested name.
_ANSWER_ANY_NAME: Final = frozenset({"SGLang", "llama.cpp"})
_TAG: Final = ":latest"  # optional for Ollama


@attrs.frozen(slots=True)
class ServedModels:
    """Models that a server lists. `software` is None for an unknown server."""

    names: tuple[str, ...]
    software: str | None = None
    max_model_len: int | None = None  # tokens of the longest request, reported by vLLM

    def knows(self, name: str) -> bool:
        if self.software in _ANSWER_ANY_NAME and len(self.names) == 1:
            return True
        return name in self.names or f"{name}{_TAG}" in self.names

    def __str__(self) -> str:
        shown = ", ".join(self.names[:5])
        return f"{shown} and {len(self.names) - 5} more" if len(self.names) > 5 else shown


async def read_served(
    http: httpx.AsyncClient, root: str, seconds: float, headers: Mapping[str, str] | None = None
) -> ServedModels | None:
    """Return the list of models, or None if the server has none."""
    try:
        async with opened(http, "GET", root + MODELS_ROUTE, timeout=seconds, headers=headers) as response:
            if not response.is_success:
                return None
            return listed(await body_of(response, _MAX_LIST_BYTES))
    except httpx.RequestError:
        return None


def listed(raw: bytes) -> ServedModels | None:
    """Read a list of models, ignoring unknown members. Return None if the body is not such a list."""
    try:
        rows = json.loads(raw)["data"]
        models = [row for row in rows if isinstance(row["id"], str) and row["id"]]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not models:
        return None
    owners = [owner for row in models if isinstance(owner := row.get("owned_by"), str) and owner in _OWNERS]
    software = _OWNERS[owners[0]] if owners else None
    lengths = [length for row in models if type(length := row.get("max_model_len")) is int and length > 0]
    return ServedModels(tuple(row["id"] for row in models), software, max(lengths, default=None))
