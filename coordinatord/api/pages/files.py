"""Static files of the pages that people look at: read once, held in memory, each with its ETag and its headers.

The headers let a page run its own scripts and read its own coordinator, and nothing else: no foreign host, no inline
script or style, no frame round it. Whatever a provider or an admin has published is text on these pages; should some of
it ever be taken for markup all the same, this policy keeps it from running or being sent anywhere.
"""

from collections.abc import Mapping
from hashlib import blake2b
from importlib import resources
from typing import Final

import attrs

POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_MEDIA: Final = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_SHARED: Final = ("dom.js", "icon.svg", "style.css")
_GUARDS: Final = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    # Asked for again each time, and answered with 304: a page is never put together from two releases.
    (b"cache-control", b"no-cache"),
)


@attrs.frozen(slots=True)
class StaticFile:
    body: bytes
    etag: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def of(cls, name: str, body: bytes) -> "StaticFile":
        etag = b'"' + blake2b(body, digest_size=12).hexdigest().encode() + b'"'
        media = _MEDIA[name.rpartition(".")[2]]
        return cls(body, etag, ((b"content-type", media), (b"etag", etag), *_GUARDS))


def market_page() -> dict[str, StaticFile]:
    """Files of the page that everybody may see, by name."""
    return _read("static")


def operators_page() -> Mapping[str, StaticFile]:
    """Files of the page behind the metrics port, by path."""
    shared = {name: file for name, file in market_page().items() if name in _SHARED}
    files = {f"/{name}": file for name, file in (shared | _read("operators")).items()}
    files["/"] = files.pop("/operators.html")
    return files


def _read(folder: str) -> dict[str, StaticFile]:
    entries = resources.files("coordinatord.api.pages").joinpath(folder).iterdir()
    return {
        entry.name: StaticFile.of(entry.name, entry.read_bytes())
        for entry in sorted(entries, key=lambda entry: entry.name)
        if entry.name.rpartition(".")[2] in _MEDIA
    }
