"""The target of a request: as a path, in whichever of the forms of RFC 9112 it came."""

import re
from typing import Final

_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)(/[^?#]*)?(\?[^#]*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(rb"([A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
_WITH_SCHEME: Final = re.compile(rb"https?:", re.IGNORECASE)


def path_of(target: bytes) -> bytes | None:
    """Path and query. None for a whole address that is none: without a host, or with a user's name in it.

    A whole address is what a proxy sends, and a server must take it. Whose name it has there does not matter: whatever
    reaches this server is for it.
    """
    if target.startswith(b"/") or not _WITH_SCHEME.match(target):
        return target
    parts = _ABSOLUTE.fullmatch(target)
    if parts is None or not _AUTHORITY.fullmatch(parts[1]):
        return None
    return (parts[2] or b"/") + (parts[3] or b"")
