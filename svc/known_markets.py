"""The file of known markets: what the coordinators told at their first use, in the user's configuration folder.

    <folder>/svc/known_markets.json       0600 in a folder of 0700
    <folder>/svc/known_markets.lock       held while it is read and written anew

Whoever can write the file can have payments signed for contracts of their own, so neither the file nor its folder may
be a link, another user's, or writable by others. It is written anew beside its place and takes it whole; two commands
that remember at the same time keep what each of them found.
"""

import json
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs

from common.refusal import Refused
from svc.core.known_market import KnownMarket, markets_as_json, read_markets

if sys.platform != "win32":
    import fcntl

VARIABLE: Final = "SVC_KNOWN_MARKETS"
_LONGEST: Final = 16 << 20
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

Change = Callable[[KnownMarket | None], KnownMarket | None]


def place_of(environment: Mapping[str, str]) -> Path | None:
    """The place of the file: as SVC_KNOWN_MARKETS names it, else in the user's configuration folder.

    None where there is no such place (no home, no POSIX) or the variable is set to nothing: known is then what this
    process has seen. The one place that knows how platforms differ.
    """
    named = environment.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    folder = None if sys.platform == "win32" else configuration_folder(environment)
    return folder and folder / "known_markets.json"


def configuration_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder `svc` of the user's configuration; None without a home."""
    if sys.platform == "win32":
        folder = environment.get("APPDATA")
        return Path(folder, "svc") if folder else None
    folder, home = environment.get("XDG_CONFIG_HOME"), environment.get("HOME")
    if folder and Path(folder).is_absolute():
        return Path(folder, "svc")
    return Path(home, ".config", "svc") if home else None


def read_own(path: Path, longest: int, variable: str) -> bytes | None:
    """A file that says who is paid, which nobody but the user can have written; None where there is none.

    Raises Refused, naming the `variable` that chooses another file, for one that must not be believed, OSError for one
    that cannot be read.
    """
    if sys.platform == "win32":
        return path.read_bytes() if path.exists() else None
    try:
        folder = _opened_folder(path.parent, variable)
    except FileNotFoundError:
        return None
    try:
        return _content(folder, path, longest, variable)
    finally:
        os.close(folder)


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
        try:
            folder = _opened_folder(self.path.parent)
        except FileNotFoundError:
            return {}
        try:
            return _read(folder, self.path)
        finally:
            os.close(folder)

    def change(self, url: str, change: Change) -> KnownMarket | None:
        """Makes anew what is known of a market, by `change` (None forgets it), while no other command writes.

        Raises Refused and OSError as `all` does, and OSError where nothing can be written.
        """
        if self.path is None:
            return _applied(self._held, url, change)
        _make_folder(self.path.parent)
        folder = _opened_folder(self.path.parent)
        try:
            with _locked(folder, self.path.with_suffix(".lock").name):
                markets = _read(folder, self.path)
                before = dict(markets)
                changed = _applied(markets, url, change)
                if markets != before:
                    _write(folder, self.path.name, markets)
                return changed
        finally:
            os.close(folder)


def _applied(markets: dict[str, KnownMarket], url: str, change: Change) -> KnownMarket | None:
    changed = change(markets.get(url))
    if changed is None:
        markets.pop(url, None)
    else:
        markets[url] = changed
    return changed


def _make_folder(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)


def _opened_folder(path: Path, variable: str = VARIABLE) -> int:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise _unsafe(path, "must be a folder and not a link", variable) from None
    try:
        _require_own(os.fstat(folder), path, variable)
    except Refused:
        os.close(folder)
        raise
    return folder


def _read(folder: int, path: Path) -> dict[str, KnownMarket]:
    raw = _content(folder, path, _LONGEST, VARIABLE)
    if raw is None:
        return {}
    try:
        return read_markets(raw)
    except Refused as refusal:
        raise Refused(f"{path}: {refusal.message}; move it away, or set {VARIABLE} to another file", VARIABLE) from None


def _content(folder: int, path: Path, longest: int, variable: str) -> bytes | None:
    try:
        # Non-blocking: a pipe in the file's place would be waited for.
        file = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.is_symlink():
            raise _unsafe(path, "must be a file and not a link", variable) from None
        raise error
    with os.fdopen(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > longest:
            raise _unsafe(path, f"must be a file of at most {longest >> 10} KiB", variable)
        _require_own(status, path, variable)
        return opened.read(longest)


def _write(folder: int, name: str, markets: Mapping[str, KnownMarket]) -> None:
    text = json.dumps(markets_as_json(markets), indent=2, sort_keys=True) + "\n"
    partial = f".{name}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(partial, flags, 0o600, dir_fd=folder), "w", encoding="utf-8") as target:
            target.write(text)
            target.flush()
            os.fsync(target.fileno())
        os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise


@contextmanager
def _locked(folder: int, name: str) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    lock = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for as long as a small file is written
        yield
    finally:
        os.close(lock)


def _require_own(status: os.stat_result, path: Path, variable: str) -> None:
    if sys.platform != "win32" and status.st_uid != os.geteuid():
        raise _unsafe(path, "must belong to you", variable)
    if status.st_mode & _OTHERS_WRITE:
        raise _unsafe(path, f"must be writable by you alone (chmod go-w {path})", variable)


def _unsafe(path: Path, what: str, variable: str) -> Refused:
    return Refused(f"{path} {what}: it says who is paid; {variable} names another file", variable)
