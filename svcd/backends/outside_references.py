"""References in a request to things outside it: addresses that the model server would fetch, and ids of what it stores.

A request that names `http://10.0.0.1/` lets a stranger reach into the provider's network through the server. A request
that names a file's id reads what another client left there. Payloads therefore carry their data themselves, also in
`data:` addresses.
"""

from typing import Final

_ADDRESSES: Final = frozenset({"url", "image_url", "video_url", "audio_url", "file_url", "server_url"})
_KEPT: Final = frozenset({"file_id", "file_ids", "vector_store_ids", "previous_response_id", "conversation"})
_KEPT_TYPES: Final = frozenset({"item_reference"})


def outside_reference(value: object) -> str | None:
    """The key (or the part's type) that points outside, the first one found; None where everything is inside."""
    if isinstance(value, list):
        return next((found for item in value if (found := outside_reference(item))), None)
    if not isinstance(value, dict):
        return None
    for key, inner in value.items():
        if key in _ADDRESSES and isinstance(inner, str) and not inner.startswith("data:"):
            return str(key)
        # A tool's schema may well have properties of these names; their values are objects, never ids.
        if key in _KEPT and isinstance(inner, str | list) and inner:
            return str(key)
        if key == "type" and isinstance(inner, str) and inner in _KEPT_TYPES:
            return inner
        if found := outside_reference(inner):
            return found
    return None
