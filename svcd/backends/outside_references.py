"""Find references to data outside a request: URLs to fetch, and ids of objects stored on the model server.

A URL such as `http://10.0.0.1/` would let a client access the provider's network, and a file's id could belong to
another client. Payloads must therefore include their data, for example in `data:` URLs.
"""

from typing import Final

_URL_KEYS: Final = frozenset({"url", "image_url", "video_url", "audio_url", "file_url", "server_url"})
_STORED_ID_KEYS: Final = frozenset({"file_id", "file_ids", "vector_store_ids", "previous_response_id", "conversation"})
_STORED_OBJECT_TYPES: Final = frozenset({"item_reference"})


def find_outside_reference(value: object) -> str | None:
    """Return the key or `type` of the first reference to outside data, or None if the value has no such reference."""
    if isinstance(value, list):
        return next((found for item in value if (found := find_outside_reference(item))), None)
    if not isinstance(value, dict):
        return None
    for key, inner in value.items():
        if key in _URL_KEYS and isinstance(inner, str) and not inner.startswith("data:"):
            return str(key)

        # A tool's schema may have properties with these names, but then the values are objects, not ids.
        if key in _STORED_ID_KEYS and isinstance(inner, str | list) and inner:
            return str(key)
        if key == "type" and isinstance(inner, str) and inner in _STORED_OBJECT_TYPES:
            return inner
        if found := find_outside_reference(inner):
            return found
    return None
