"""Find references in a request to data outside it: addresses to fetch, and ids of stored objects.

An address such as `http://10.0.0.1/` would let a client reach into the provider's network, and a file's id could belong
to another client. Payloads must therefore include their data, for example in `data:` addresses.
"""

from typing import Final

_ADDRESSES: Final = frozenset({"url", "image_url", "video_url", "audio_url", "file_url", "server_url"})
_KEPT: Final = frozenset({"file_id", "file_ids", "vector_store_ids", "previous_response_id", "conversation"})
_KEPT_TYPES: Final = frozenset({"item_reference"})


def outside_reference(value: object) -> str | None:
    """Return the key, or the `type` of a part, of the first reference to outside data, or None."""
    if isinstance(value, list):
        return next((found for item in value if (found := outside_reference(item))), None)
    if not isinstance(value, dict):
        return None
    for key, inner in value.items():
        if key in _ADDRESSES and isinstance(inner, str) and not inner.startswith("data:"):
            return str(key)
        # A tool's schema may have properties with these names, but their values are objects and not ids.
        if key in _KEPT and isinstance(inner, str | list) and inner:
            return str(key)
        if key == "type" and isinstance(inner, str) and inner in _KEPT_TYPES:
            return inner
        if found := outside_reference(inner):
            return found
    return None
