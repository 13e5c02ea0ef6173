"""The load as a number at one place of a JSON answer."""

import json
import math

import attrs
import httpx

from svcd.probes.fetching import fetch
from svcd.probes.settings import JsonSettings


@attrs.frozen(slots=True)
class JsonProbe:
    settings: JsonSettings
    client: httpx.AsyncClient

    async def read(self) -> float | None:
        raw = await fetch(self.client, self.settings.url, self.settings.seconds)
        return None if raw is None else load_in(raw, self.settings)


def load_in(raw: bytes, settings: JsonSettings) -> float | None:
    """None where there is no number."""
    try:
        value = settings.path.first(json.loads(raw))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return max(0.0, min(1.0, value / settings.full_at))
