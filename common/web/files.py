"""Load the static files of a web page, with ETags and headers, and the files that all pages share.

The content security policy lets a page run only its own scripts and contact only its own server. The policy forbids
inline scripts and styles, and frames. Pages insert untrusted text as text nodes. If a bug parsed the text as markup,
the policy would still block scripts and requests in the text.
"""

from hashlib import blake2b
from importlib import resources
from typing import Final

import attrs

CONTENT_SECURITY_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_MEDIA_TYPES: Final = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_SECURITY_HEADERS: Final = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    # Revalidate on every load, so that a page never mixes files of two releases.
    (b"cache-control", b"no-cache"),
)


@attrs.frozen(slots=True)
class StaticFile:
    """File of a web page with its ETag and response headers."""

    body: bytes
    etag: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def of(cls, name: str, body: bytes) -> "StaticFile":
        etag = b'"' + blake2b(body, digest_size=12).hexdigest().encode() + b'"'
        media = _MEDIA_TYPES[name.rpartition(".")[2]]
        return cls(body, etag, ((b"content-type", media), (b"etag", etag), *_SECURITY_HEADERS))


def page_files(package: str, folder: str) -> dict[str, StaticFile]:
    """Return the files of a page by name: the shared files, and the files in `folder`. A page loads both."""
    return _read_folder("common.web", "static") | _read_folder(package, folder)


def _read_folder(package: str, folder: str) -> dict[str, StaticFile]:
    entries = resources.files(package).joinpath(folder).iterdir()
    return {
        entry.name: StaticFile.of(entry.name, entry.read_bytes())
        for entry in sorted(entries, key=lambda entry: entry.name)
        if entry.name.rpartition(".")[2] in _MEDIA_TYPES
    }
