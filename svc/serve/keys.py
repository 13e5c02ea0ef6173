"""Keys of the local API. A program sends its key as `authorization: Bearer …`. Each key has a file."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from common.refusal import Refused
from svc.serve.problems import Problem
from svc.serve.settings import ServeSettings

KEY_FILE_NAME: Final = "serve.key"
_MIN_KEY_LENGTH: Final = 16
_MAX_KEY_LENGTH: Final = 512


@attrs.frozen(slots=True)
class ApiKey:
    """Key of the local API.

    Programs with this key may request the models in `models`, or every model if `models` is empty.
    """

    name: str
    secret: bytes = attrs.field(repr=False)
    models: frozenset[str] = frozenset()

    def digest(self, *parts: bytes) -> str:
        """Return a keyed digest of a request. Without the key, the digest cannot confirm a guess of the request."""
        return hmac.new(self.secret, b"\0".join(parts), hashlib.sha256).hexdigest()


class Keys:
    """Keys that programs send. `page_keys` belong to the server's page, and are rejected when a program sends them."""

    def __init__(self, keys: Sequence[ApiKey], page_keys: Sequence[ApiKey] = ()) -> None:
        self._keys = keys
        self._page_keys = page_keys

    @classmethod
    def load(cls, settings: ServeSettings, folder: Path, page_keys: Sequence[ApiKey] = ()) -> "Keys":
        """Return the keys of the settings. If the settings have none, return the key in the state folder, which is
        created if it is missing. Raises Refused."""
        if not settings.keys:
            return cls([ApiKey("default", read_or_create_key(folder))], page_keys)
        keys = [
            ApiKey(name, _read_key(Path(key.file).expanduser()), frozenset(key.models))
            for name, key in settings.keys.items()
        ]
        if len({key.secret for key in keys}) < len(keys):
            raise Refused(
                "two keys in [keys] have the same secret: give each key a file with a different secret", "keys"
            )
        return cls(keys, page_keys)

    def find_by_name(self, name: str) -> ApiKey | None:
        return next((key for key in (*self._page_keys, *self._keys) if key.name == name), None)

    def authenticate(self, authorization: str) -> ApiKey:
        """Return the key that was sent. Every key is compared, so that the response time reveals nothing.

        Raises Problem (`invalid_api_key`).
        """
        scheme, _, sent_key = authorization.partition(" ")
        sent_digest = hashlib.sha256(sent_key.strip().encode("utf-8", "replace")).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(sent_digest, hashlib.sha256(key.secret).digest()):
                found = key
        if found is None or scheme.lower() != "bearer":
            message = (
                "wrong API key: use a key of serve.toml, or the key in the file that svc serve printed at its start"
            )
            raise Problem(401, message, code="invalid_api_key")
        return found


def read_or_create_key(folder: Path, name: str = KEY_FILE_NAME) -> bytes:
    """Return the key in a file of the state folder. Create the file if it is missing."""
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_key(path)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"sk-svc-{secrets.token_urlsafe(32)}\n")
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    try:
        raw = path.read_bytes().strip()
    except OSError as error:
        raise Refused(f"the key file {path} cannot be read: {error.strerror}", "keys") from None
    if not _MIN_KEY_LENGTH <= len(raw) <= _MAX_KEY_LENGTH or not raw.isascii() or b" " in raw:
        message = (
            f"{path} must contain one key of {_MIN_KEY_LENGTH} to {_MAX_KEY_LENGTH} ASCII characters without spaces"
        )
        raise Refused(message, "keys")
    return raw
