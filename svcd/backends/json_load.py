"""Load of a model server, read as a number at one place of a JSON answer."""

import json
import math

import attrs
import httpx

from svcd.backends.load_request import fetch
from svcd.backends.load_settings import JsonSettings


@attrs.frozen(slots=True)
class JsonProbe:
    settings: JsonSettings
    client: httpx.AsyncClient

    async def read(self) -> float | None:
        raw = await fetch(self.client, self.settings.url, self.settings.timeout_s)
        return None if raw is None else load_in_json(raw, self.settings)


def load_in_json(raw: bytes, settings: JsonSettings) -> float | None:
    """Return the load, or None without a number."""
    try:
        value = settings.path.first(json.loads(raw))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        load = float(value) / settings.full_at
    except OverflowError:  # an integer too large for a float
        return None
    return max(0.0, min(1.0, load)) if math.isfinite(load) else None
