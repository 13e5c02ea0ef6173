"""The file of known markets: what the coordinators told at their first use, in the user's configuration folder.

    <folder>/svc/known_markets.json       0600 in a folder of 0700
    <folder>/svc/known_markets.lock       held while it is read and written anew

It says who is paid, and is kept as such (see svc.own_files); two commands that remember at the same time keep what each
of them found.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

from common.refusal import Refused
from svc.core.known_market import KnownMarket, markets_as_json, read_markets
from svc.own_files import OwnFile, configuration_folder

VARIABLE: Final = "SVC_KNOWN_MARKETS"
_LONGEST: Final = 16 << 20

Change = Callable[[KnownMarket | None], KnownMarket | None]


def place_of(environment: Mapping[str, str]) -> Path | None:
    """The place of the file: as SVC_KNOWN_MARKETS names it, else in the user's configuration folder.

    None where there is no such place (no home) or the variable is set to nothing: known is then what this process has
    seen.
    """
    named = environment.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    folder = configuration_folder(environment)
    return folder and folder / "known_markets.json"


@attrs.define(eq=False)
class KnownMarkets:
    """Markets by the address of their coordinator. Without a path they are known to this object alone."""

    path: Path | None = None
    _held: dict[str, KnownMarket] = attrs.field(factory=dict)

    def get(self, url: str) -> KnownMarket | None:
        return self.all().get(url)

    def all(self) -> dict[str, KnownMarket]:
        """Raises Refused for a file that must not be believed, OSError for one that cannot be read."""
        if self.path is None:
            return dict(self._held)
        return _parsed(self.path, _file(self.path).read())

    def change(self, url: str, change: Change) -> KnownMarket | None:
        """Makes anew what is known of a market, by `change` (None forgets it), while no other command writes.

        Raises Refused and OSError as `all` does, and OSError where nothing can be written.
        """
        if self.path is None:
            return _applied(self._held, url, change)
        with _file(self.path).changing() as file:
            markets = _parsed(self.path, file.read())
            before = dict(markets)
            changed = _applied(markets, url, change)
            if markets != before:
                file.write(json.dumps(markets_as_json(markets), indent=2, sort_keys=True) + "\n")
            return changed


def _file(path: Path) -> OwnFile:
    return OwnFile(path, VARIABLE, _LONGEST)


def _applied(markets: dict[str, KnownMarket], url: str, change: Change) -> KnownMarket | None:
    changed = change(markets.get(url))
    if changed is None:
        markets.pop(url, None)
    else:
        markets[url] = changed
    return changed


def _parsed(path: Path, raw: bytes | None) -> dict[str, KnownMarket]:
    if raw is None:
        return {}
    try:
        return read_markets(raw)
    except Refused as refusal:
        raise Refused(f"{path}: {refusal.message}; move it away, or set {VARIABLE} to another file", VARIABLE) from None
