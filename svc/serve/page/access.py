"""Access to the page: one-time links, and the sessions that they open.

    svc serve, svc serve link ── link: five minutes, once ──► page ── POST /page/session ──► session: twelve hours

Links and sessions are digests under a secret in the state folder. So `svc serve link` needs no connection to the
server, and a session survives a restart of the server.

A session has two halves. The cookie is HttpOnly, so scripts cannot read it. But a browser sends it to every port of
the host. The page keeps the other half in its origin's storage and sends it in a header. Pages on other ports cannot
read that storage, and pages of other origins cannot set that header.
"""

import base64
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

from common.refusal import Refused
from svc.protected_files import open_atomic
from svc.serve.keys import ApiKey, read_or_create_key
from svc.serve.problems import Problem

LINK_LIFETIME_S: Final = 300
SESSION_LIFETIME_S: Final = 43_200
PAGE_HEADER: Final = "x-svc-page"  # the page's half of a session, or a link
PAGE_KEY_NAME: Final = "playground"  # the key under which the page buys
_SECRET_FILE: Final = "page.secret"  # noqa: S105 - a file name
_URL_FILE: Final = "page.url"
_LOCKED_MESSAGE: Final = "this page is locked: run svc serve link in a terminal, and open the link that it prints"


@attrs.define(eq=False)
class PageAccess:
    """Checks links and sessions. The cookie's name contains `port`, because browsers share cookies between ports."""

    secret: bytes = attrs.field(repr=False)
    port: int
    uses_https: bool = False
    clock: Callable[[], float] = time.time
    _started_at: float = attrs.field(init=False)
    _used_links: dict[str, float] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._started_at = self.clock()

    @property
    def cookie_name(self) -> str:
        return f"svc-page-{self.port}"

    def open_session(self, link: str) -> tuple[str, str]:
        """Return the cookie and the token of a new session. Raises Problem for a used, old or wrong link.

        Links made before the start of the server are rejected, because used links are only remembered in memory.
        """
        created_ms, nonce, digest = _split_token(link)
        now = self.clock()
        is_genuine = hmac.compare_digest(digest, _keyed_digest(self.secret, "link", f"{created_ms}.{nonce}"))
        is_current = int(self._started_at * 1000) <= created_ms <= now * 1000 <= created_ms + LINK_LIFETIME_S * 1000
        self._used_links = {used: until for used, until in self._used_links.items() if until > now}
        if not is_genuine or not is_current or nonce in self._used_links:
            message = "this link was used or is too old: run svc serve link in a terminal, and open the new one"
            raise Problem(401, message, code="link_not_valid")
        self._used_links[nonce] = created_ms / 1000 + LINK_LIFETIME_S + 1
        session = f"{int(now) + SESSION_LIFETIME_S}.{secrets.token_urlsafe(16)}"
        value = f"{session}.{_keyed_digest(self.secret, 'cookie', session)}"
        return self._cookie_header(value, SESSION_LIFETIME_S), _keyed_digest(self.secret, "token", session)

    def end_session(self) -> str:
        """Return the cookie that removes the session from the browser."""
        return self._cookie_header("", 0)

    def check_session(self, headers: Mapping[str, str]) -> None:
        """Check that both halves of a session are in the headers. Raises Problem (`page_locked`)."""
        cookies = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
        for name, _, value in cookies:
            if name == self.cookie_name and self._is_valid_session(value, headers.get(PAGE_HEADER, "")):
                return
        raise Problem(401, _LOCKED_MESSAGE, code="page_locked")

    def _is_valid_session(self, cookie: str, token: str) -> bool:
        expires, nonce, digest = _split_token(cookie)
        session = f"{expires}.{nonce}"
        cookie_valid = hmac.compare_digest(digest, _keyed_digest(self.secret, "cookie", session))
        token_valid = hmac.compare_digest(token.encode(), _keyed_digest(self.secret, "token", session).encode())
        return cookie_valid and token_valid and self.clock() < expires

    def _cookie_header(self, value: str, seconds: int) -> str:
        flags = "HttpOnly; SameSite=Strict" + ("; Secure" if self.uses_https else "")
        return f"{self.cookie_name}={value}; Path=/; Max-Age={seconds}; {flags}"


def read_or_create_page_secret(folder: Path) -> bytes:
    """Return the page's secret. Create its file if it is missing. Raises Refused."""
    return read_or_create_key(folder, _SECRET_FILE)


def create_page_key(secret: bytes) -> ApiKey:
    """Return the key of the page's purchases. No program can know this key, because it is a digest under `secret`."""
    return ApiKey(PAGE_KEY_NAME, _keyed_digest(secret, "key", PAGE_KEY_NAME).encode())


def create_link(secret: bytes, url: str, now: float) -> str:
    """Return a link that opens the page once. Its digest is in the fragment, which browsers send to no server."""
    signed_part = f"{int(now * 1000)}.{secrets.token_urlsafe(16)}"
    return f"{url}#/open/{signed_part}.{_keyed_digest(secret, 'link', signed_part)}"


def store_server_url(folder: Path, url: str) -> None:
    """Store the address of the running server for `svc serve link`."""
    with open_atomic(folder / _URL_FILE) as file:
        file.write(url.encode())


def remove_server_url(folder: Path) -> None:
    (folder / _URL_FILE).unlink(missing_ok=True)


def create_link_to_running_server(folder: Path) -> str:
    """Return a new link to the server that uses this state folder. Raises Refused if no server is running."""
    try:
        url = (folder / _URL_FILE).read_text().strip()
    except OSError:
        raise Refused(f"no svc serve is running with the state folder {folder}: start it with svc serve") from None
    return create_link(read_or_create_page_secret(folder), url, time.time())


def _split_token(text: str) -> tuple[int, str, str]:
    """Split a link or a cookie into its number, nonce and digest. Malformed text gives parts that never match."""
    number, _, rest = text.partition(".")
    nonce, _, digest = rest.partition(".")
    if not (number.isascii() and number.isdecimal() and len(number) <= 16 and text.isascii()):
        return 0, "", ""
    return int(number), nonce, digest


def _keyed_digest(secret: bytes, purpose: str, text: str) -> str:
    digest = hmac.digest(secret, f"{purpose}\0{text}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
