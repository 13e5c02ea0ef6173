"""Keys of the local API: texts that programs send as `authorization: Bearer …`, each in a file of its own."""

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

KEY_FILE: Final = "serve.key"
_LEAST_KEY: Final = 16
_LONGEST_KEY: Final = 512


@attrs.frozen(slots=True)
class ApiKey:
    """`models`: names that it may ask for; all where there are none."""

    name: str
    secret: bytes = attrs.field(repr=False)
    models: frozenset[str] = frozenset()

    def digest(self, *parts: bytes) -> str:
        """Of a request, keyed: whoever reads the ledger cannot try guesses of what was asked."""
        return hmac.new(self.secret, b"\0".join(parts), hashlib.sha256).hexdigest()


class Keys:
    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = keys

    @classmethod
    def of(cls, settings: ServeSettings, folder: Path) -> "Keys":
        """The keys of the settings; without any, one in the state folder, made at the first start. Raises Refused."""
        if not settings.keys:
            return cls([ApiKey("default", own_key(folder))])
        keys = [
            ApiKey(name, _read(Path(key.file).expanduser()), frozenset(key.models))
            for name, key in settings.keys.items()
        ]
        if len({key.secret for key in keys}) < len(keys):
            raise Refused("two keys must not be the same: budgets could not tell them apart", "keys")
        return cls(keys)

    def named(self, name: str) -> ApiKey | None:
        return next((key for key in self._keys if key.name == name), None)

    def find(self, authorization: str) -> ApiKey:
        """Raises Problem (`invalid_api_key`). Every key is compared, so that time tells nothing."""
        scheme, _, given = authorization.partition(" ")
        offered = hashlib.sha256(given.strip().encode("utf-8", "replace")).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(offered, hashlib.sha256(key.secret).digest()):
                found = key
        if found is None or scheme.lower() != "bearer":
            message = "a key of this svc serve must be given as api_key: its file is named where it was started"
            raise Problem(401, message, code="invalid_api_key")
        return found


def own_key(folder: Path) -> bytes:
    """The key in the state folder, made where there is none."""
    path = folder / KEY_FILE
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.write(f"sk-svc-{secrets.token_urlsafe(32)}\n")
    return _read(path)


def _read(path: Path) -> bytes:
    try:
        raw = path.read_bytes().strip()
    except OSError as error:
        raise Refused(f"the key file {path} cannot be read: {error.strerror}", "keys") from None
    if not _LEAST_KEY <= len(raw) <= _LONGEST_KEY or not raw.isascii() or b" " in raw:
        message = f"{path} must hold one key of {_LEAST_KEY} to {_LONGEST_KEY} ASCII signs without blanks"
        raise Refused(message, "keys")
    return raw
