"""File of known markets: the facts that each coordinator reported at its first use.

    <folder>/svc/known_markets.json       mode 0600, in a folder with mode 0700
    <folder>/svc/known_markets.lock       locked while the file is read and replaced

The file decides who is paid, so it is protected (see svc.protected_files). Commands that run at the same time do not
overwrite each other's entries.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

from common.refusal import Refused
from svc.core.known_market import KnownMarket, markets_as_json, read_markets
from svc.protected_files import ProtectedFile, configuration_folder

PATH_VARIABLE: Final = "SVC_KNOWN_MARKETS"
_MAX_FILE_BYTES: Final = 16 << 20

UpdateMarket = Callable[[KnownMarket | None], KnownMarket | None]  # returns None to forget the market


def known_markets_path(configured: str | None, environment: Mapping[str, str]) -> Path | None:
    """Return the path in SVC_KNOWN_MARKETS, or in the user's configuration folder.

    Return None if the variable is empty or there is no home folder. Known markets are then only in memory.
    """
    if configured is not None:
        return Path(configured) if configured else None
    folder = configuration_folder(environment)
    return folder and folder / "known_markets.json"


@attrs.define(eq=False)
class KnownMarkets:
    """Known markets by their coordinator's address, in the file at `path`, or in memory if `path` is None."""

    path: Path | None = None
    _in_memory: dict[str, KnownMarket] = attrs.field(factory=dict)

    def get(self, url: str) -> KnownMarket | None:
        return self.all().get(url)

    def all(self) -> dict[str, KnownMarket]:
        """Return all markets. Raises Refused for an unsafe file, and OSError for an unreadable file."""
        if self.path is None:
            return dict(self._in_memory)
        return _parse(self.path, _protected_file(self.path).read())

    def change(self, url: str, update: UpdateMarket) -> KnownMarket | None:
        """Lock the file, and replace a market with the result of `update`.

        Raises the errors of `all`, and OSError if the file cannot be written.
        """
        if self.path is None:
            return _update_entry(self._in_memory, url, update)
        with _protected_file(self.path).lock_for_change() as file:
            markets = _parse(self.path, file.read())
            old = dict(markets)
            changed = _update_entry(markets, url, update)
            if markets != old:
                file.write(json.dumps(markets_as_json(markets), indent=2, sort_keys=True) + "\n")
            return changed


def _protected_file(path: Path) -> ProtectedFile:
    return ProtectedFile(path, PATH_VARIABLE, _MAX_FILE_BYTES)


def _update_entry(markets: dict[str, KnownMarket], url: str, update: UpdateMarket) -> KnownMarket | None:
    changed = update(markets.get(url))
    if changed is None:
        markets.pop(url, None)
    else:
        markets[url] = changed
    return changed


def _parse(path: Path, raw: bytes | None) -> dict[str, KnownMarket]:
    if raw is None:
        return {}
    try:
        return read_markets(raw)
    except Refused as refusal:
        raise Refused(
            f"{path}: {refusal.message}; rename the file, or set {PATH_VARIABLE} to another file", PATH_VARIABLE
        ) from None
