"""Read the load of a model server from a number in a JSON response."""

import json
import math

import attrs
import httpx

from svcd.backends.load_request import fetch_body
from svcd.backends.load_settings import JsonSettings


@attrs.frozen(slots=True)
class JsonProbe:
    settings: JsonSettings
    client: httpx.AsyncClient

    async def read(self) -> float | None:
        raw = await fetch_body(self.client, self.settings.url, self.settings.timeout_s)
        return None if raw is None else load_from_json(raw, self.settings)


def load_from_json(raw: bytes, settings: JsonSettings) -> float | None:
    """Return the load from 0 to 1, or None if the response has no number at the configured path."""
    try:
        value = settings.path.select_first(json.loads(raw))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        load = float(value) / settings.full_at
    except OverflowError:  # an integer too large for a float
        return None
    return max(0.0, min(1.0, load)) if math.isfinite(load) else None
