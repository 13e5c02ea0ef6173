"""Files of this user that say who is paid: known markets and profiles, in the configuration folder.

Whoever can write such a file can have payments signed for contracts of their own. On POSIX neither the file nor its
folder may hence be a link, another user's, or writable by others; on Windows the folder of application data is the
user's own by its access list. A file is written anew beside its place and takes it whole; a lock beside it is held from
the reading on, so that of two commands neither undoes what the other wrote.

The one module that knows how platforms differ in this. What a command writes for its user appears whole as well.
"""

import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import attrs

from common.refusal import Refused

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_LOCK_SECONDS: Final = 10.0
_PAUSE: Final = 0.05


def configuration_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder `svc` of the user's configuration; None without a home."""
    if sys.platform == "win32":
        folder = environment.get("APPDATA")
        return Path(folder, "svc") if folder else None
    folder, home = environment.get("XDG_CONFIG_HOME"), environment.get("HOME")
    if folder and Path(folder).is_absolute():
        return Path(folder, "svc")
    return Path(home, ".config", "svc") if home else None


@attrs.frozen
class OwnFile:
    """`variable` names another file, in refusals. `longest` is of what is read, in bytes."""

    path: Path
    variable: str
    longest: int

    def read(self) -> bytes | None:
        """Its content; None where there is none. Raises Refused for a file that must not be believed, OSError for one
        that cannot be read."""
        try:
            with _opened_folder(self) as folder:
                return _content(folder, self)
        except FileNotFoundError:
            return None

    @contextmanager
    def changing(self) -> Iterator["Change"]:
        """The file, while no other command of this user changes it. Raises as `read` does, OSError where nothing can be
        written."""
        _make_folder(self.path.parent)
        with _opened_folder(self) as folder, _locked(folder, self.path.with_suffix(".lock")):
            yield Change(self, folder)

    def unsafe(self, what: str, place: Path | None = None) -> Refused:
        message = f"{place or self.path} {what}: it says who is paid; {self.variable} names another file"
        return Refused(message, self.variable)


@attrs.frozen
class Change:
    file: OwnFile
    _folder: int

    def read(self) -> bytes | None:
        return _content(self._folder, self.file)

    def write(self, text: str) -> None:
        _write(self._folder, self.file.path, text)


def _make_folder(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)


def _partial(path: Path) -> str:
    return f".{path.name}.{secrets.token_hex(8)}"


if sys.platform == "win32":

    @contextmanager
    def _opened_folder(file: OwnFile) -> Iterator[int]:
        if not file.path.parent.is_dir():
            raise FileNotFoundError(file.path.parent)
        yield 0  # folders have no numbers there

    def _content(_: int, file: OwnFile) -> bytes | None:
        if file.path.is_symlink() or (file.path.exists() and not file.path.is_file()):
            raise file.unsafe("must be a file and not a link")
        try:
            with file.path.open("rb") as opened:
                raw = opened.read(file.longest + 1)
        except FileNotFoundError:
            return None
        if len(raw) > file.longest:
            raise file.unsafe(f"must be a file of at most {file.longest >> 10} KiB")
        return raw

    def _write(_: int, path: Path, text: str) -> None:
        partial = path.with_name(_partial(path))
        try:
            with partial.open("x", encoding="utf-8", newline="\n") as target:
                target.write(text)
                target.flush()
                os.fsync(target.fileno())
            _replaced(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _replaced(partial: Path, path: Path) -> None:
        """A file that somebody reads at this moment cannot be replaced there: a moment later it can."""
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return os.replace(partial, path)
            except PermissionError:
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)

    @contextmanager
    def _locked(_: int, path: Path) -> Iterator[None]:
        with path.open("ab") as lock:
            lock.seek(0)
            msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK, 1)  # tries for ten seconds
            try:
                yield
            finally:
                lock.seek(0)
                msvcrt.locking(lock.fileno(), msvcrt.LK_UNLCK, 1)

else:

    @contextmanager
    def _opened_folder(file: OwnFile) -> Iterator[int]:
        path = file.path.parent
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except NotADirectoryError:
            raise file.unsafe("must be a folder and not a link", path) from None
        try:
            _require_own(os.fstat(folder), file, path)
            yield folder
        finally:
            os.close(folder)

    def _content(folder: int, file: OwnFile) -> bytes | None:
        path = file.path
        try:
            # Non-blocking: a pipe in the file's place would be waited for.
            number = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if path.is_symlink():
                raise file.unsafe("must be a file and not a link") from None
            raise error
        with os.fdopen(number, "rb") as opened:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode) or status.st_size > file.longest:
                raise file.unsafe(f"must be a file of at most {file.longest >> 10} KiB")
            _require_own(status, file, path)
            return opened.read(file.longest)

    def _write(folder: int, path: Path, text: str) -> None:
        partial = _partial(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(partial, flags, 0o600, dir_fd=folder), "w", encoding="utf-8") as target:
                target.write(text)
                target.flush()
                os.fsync(target.fileno())
            os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise

    @contextmanager
    def _locked(folder: int, path: Path) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        lock = os.open(path.name, flags, 0o600, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for as long as a small file is written
            yield
        finally:
            os.close(lock)

    def _require_own(status: os.stat_result, file: OwnFile, path: Path) -> None:
        if status.st_uid != os.geteuid():
            raise file.unsafe("must belong to you", path)
        if status.st_mode & _OTHERS_WRITE:
            raise file.unsafe(f"must be writable by you alone (chmod go-w {path})", path)


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, readable by its owner alone; it takes its name when the block ends without an error.

    A device or a pipe is written to as it is, and a link at the named place is followed: to take their place would be
    to remove them. Until then the bytes are in a file whose name nobody can guess, so that no link can lie in wait.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    path = path.resolve()
    partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
