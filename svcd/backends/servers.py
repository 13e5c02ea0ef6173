"""Read the model list of a server with OpenAI's routes.

The `owned_by` of a model identifies vLLM, SGLang, llama.cpp, Ollama and LMDeploy.
"""

import json
from collections.abc import Mapping
from typing import Final

import attrs
import httpx

from svc.wire.answers import open_response, read_body

MODELS_ROUTE: Final = "/v1/models"
_MAX_LIST_BYTES: Final = 4 << 20
_SOFTWARE_BY_OWNER: Final = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "library": "Ollama",
    "lmdeploy": "LMDeploy",
}

# With a single loaded model, these servers ignore the requested name.
_SOFTWARE_IGNORING_NAMES: Final = frozenset({"SGLang", "llama.cpp"})
_DEFAULT_TAG: Final = ":latest"  # Ollama lists this tag, but requests may omit it


@attrs.frozen(slots=True)
class ServedModels:
    """Models that a server lists. `software` is None for an unknown server."""

    names: tuple[str, ...]
    software: str | None = None
    max_model_len: int | None = None  # highest number of tokens in a request, as vLLM reports it

    def accepts(self, name: str) -> bool:
        if self.software in _SOFTWARE_IGNORING_NAMES and len(self.names) == 1:
            return True
        return name in self.names or f"{name}{_DEFAULT_TAG}" in self.names

    def __str__(self) -> str:
        shown = ", ".join(self.names[:5])
        return f"{shown} and {len(self.names) - 5} more" if len(self.names) > 5 else shown


async def read_served_models(
    http: httpx.AsyncClient, root: str, timeout_s: float, headers: Mapping[str, str] | None = None
) -> ServedModels | None:
    """Return the models that the server lists, or None if the server has no list or does not answer."""
    try:
        async with open_response(http, "GET", root + MODELS_ROUTE, timeout=timeout_s, headers=headers) as response:
            if not response.is_success:
                return None
            return parse_model_list(await read_body(response, _MAX_LIST_BYTES))
    except httpx.RequestError:
        return None


def parse_model_list(raw: bytes) -> ServedModels | None:
    """Parse a list of models, ignoring unknown members. Return None if the body names no model."""
    try:
        rows = json.loads(raw)["data"]
        models = [row for row in rows if isinstance(row["id"], str) and row["id"]]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not models:
        return None
    owners = [owner for row in models if isinstance(owner := row.get("owned_by"), str) and owner in _SOFTWARE_BY_OWNER]
    software = _SOFTWARE_BY_OWNER[owners[0]] if owners else None
    lengths = [length for row in models if type(length := row.get("max_model_len")) is int and length > 0]
    return ServedModels(tuple(row["id"] for row in models), software, max(lengths, default=None))
