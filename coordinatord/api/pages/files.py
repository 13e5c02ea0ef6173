"""Static files of the web pages, held in memory with their ETags and headers.

The content security policy allows a page only to run its own scripts and read its own coordinator. It forbids other
hosts, inline scripts and styles, and frames. Text published by providers or admins is inserted as text. If it were ever
parsed as markup, the policy would keep it from running or sending data.
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
    # Revalidated on every load, so that a page never mixes files of two releases.
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
    """Return the files of the public page, by name."""
    return _read("static")


def operators_page() -> Mapping[str, StaticFile]:
    """Return the files of the page on the metrics port, by path."""
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
