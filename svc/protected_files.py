"""Files that other users must not write, such as known markets and profiles. Also writes output files atomically.

Anyone who can write such a file can redirect payments. On POSIX, neither the file nor its folder may be a link, belong
to another user or be writable by others. On Windows, the access list of the application data folder protects the file.
A change locks the file, reads it and replaces it atomically.

Modules that use these files do not depend on the platform.
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

_OTHERS_WRITE_BITS: Final = stat.S_IWGRP | stat.S_IWOTH
_REPLACE_TIMEOUT_S: Final = 10.0
_REPLACE_RETRY_PAUSE_S: Final = 0.05


def configuration_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder `svc` in the user's configuration folder, or None if the user has no home folder."""
    if sys.platform == "win32":
        folder = environment.get("APPDATA")
        return Path(folder, "svc") if folder else None
    folder, home = environment.get("XDG_CONFIG_HOME"), environment.get("HOME")
    if folder and Path(folder).is_absolute():
        return Path(folder, "svc")
    return Path(home, ".config", "svc") if home else None


@attrs.frozen
class ProtectedFile:
    """File that only its owner may write.

    `variable` is the name of the setting with the path, for error messages. A file above `max_bytes` is rejected.
    """

    path: Path
    variable: str
    max_bytes: int

    def read(self) -> bytes | None:
        """Return the content, or None if the file is missing.

        Raises Refused for an unsafe file, and OSError for an unreadable file.
        """
        try:
            with _open_folder(self) as folder:
                return _read(folder, self)
        except FileNotFoundError:
            return None

    @contextmanager
    def lock_for_change(self, *, wait: bool = True) -> Iterator["LockedFile"]:
        """Lock the file against other processes, and yield it for reading and writing.

        Waits while another process holds the lock, or with `wait=False` raises Refused (`in_use`). Raises the errors
        of `read`, and OSError if writing fails.
        """
        _make_folder(self.path.parent)
        with _open_folder(self) as folder, _lock_file(folder, self.path.with_suffix(".lock"), wait=wait):
            yield LockedFile(self, folder)

    def unsafe_error(self, problem: str, path: Path | None = None) -> Refused:
        message = (
            f"{path or self.path} {problem}: the file decides who is paid; to use another file, set {self.variable}"
        )
        return Refused(message, self.variable)


@attrs.frozen
class LockedFile:
    """Locked file, to read and then replace."""

    file: ProtectedFile
    _folder: int

    def read(self) -> bytes | None:
        return _read(self._folder, self.file)

    def write(self, text: str, *, sync: bool = True) -> None:
        """Replace the file. Without `sync`, a power failure may bring back the old content."""
        _write(self._folder, self.file.path, text, sync=sync)

    def remove(self) -> None:
        """Remove the file and its lock."""
        for path in (self.file.path, self.file.path.with_suffix(".lock")):
            with suppress(PermissionError):  # Windows does not remove an open lock
                path.unlink(missing_ok=True)


def _make_folder(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)


def _in_use_error(path: Path) -> Refused:
    return Refused(f"another process is using {path.with_suffix('')}: wait until it has ended", code="in_use")


def _temporary_name(path: Path) -> str:
    return f".{path.name}.{secrets.token_hex(8)}"


if sys.platform == "win32":

    @contextmanager
    def _open_folder(file: ProtectedFile) -> Iterator[int]:
        if not file.path.parent.is_dir():
            raise FileNotFoundError(file.path.parent)
        yield 0  # no folder descriptors on Windows

    def _read(_: int, file: ProtectedFile) -> bytes | None:
        if file.path.is_symlink() or (file.path.exists() and not file.path.is_file()):
            raise file.unsafe_error("must be a file and not a link")
        try:
            with file.path.open("rb") as file_:
                raw = file_.read(file.max_bytes + 1)
        except FileNotFoundError:
            return None
        if len(raw) > file.max_bytes:
            raise file.unsafe_error(f"must be a file of at most {file.max_bytes >> 10} KiB")
        return raw

    def _write(_: int, path: Path, text: str, *, sync: bool) -> None:
        partial = path.with_name(_temporary_name(path))
        try:
            with partial.open("x", encoding="utf-8", newline="\n") as target:
                target.write(text)
                target.flush()
                if sync:
                    os.fsync(target.fileno())
            _replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _replace(partial: Path, path: Path) -> None:
        """Replace a file. Retry on PermissionError, which Windows raises while another process reads the file."""
        deadline = time.monotonic() + _REPLACE_TIMEOUT_S
        while True:
            try:
                return os.replace(partial, path)
            except PermissionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_REPLACE_RETRY_PAUSE_S)

    @contextmanager
    def _lock_file(_: int, path: Path, *, wait: bool) -> Iterator[None]:
        with path.open("ab") as lock:
            lock.seek(0)
            try:
                # LK_LOCK retries for ten seconds.
                msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:
                if wait:
                    raise
                raise _in_use_error(path) from None
            try:
                yield
            finally:
                lock.seek(0)
                msvcrt.locking(lock.fileno(), msvcrt.LK_UNLCK, 1)

else:

    @contextmanager
    def _open_folder(file: ProtectedFile) -> Iterator[int]:
        path = file.path.parent
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except NotADirectoryError:
            raise file.unsafe_error("must be a folder and not a link", path) from None
        try:
            _require_sole_writer(os.fstat(folder), file, path)
            yield folder
        finally:
            os.close(folder)

    def _read(folder: int, file: ProtectedFile) -> bytes | None:
        path = file.path
        try:
            # O_NONBLOCK, so that opening a pipe does not wait for a writer.
            descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if path.is_symlink():
                raise file.unsafe_error("must be a file and not a link") from None
            raise error
        with os.fdopen(descriptor, "rb") as file_:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > file.max_bytes:
                raise file.unsafe_error(f"must be a file of at most {file.max_bytes >> 10} KiB")
            _require_sole_writer(status, file, path)
            return file_.read(file.max_bytes)

    def _write(folder: int, path: Path, text: str, *, sync: bool) -> None:
        partial = _temporary_name(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(partial, flags, 0o600, dir_fd=folder), "w", encoding="utf-8") as target:
                target.write(text)
                target.flush()
                if sync:
                    os.fsync(target.fileno())
            os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            if sync:
                os.fsync(folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise

    @contextmanager
    def _lock_file(folder: int, path: Path, *, wait: bool) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        lock = os.open(path.name, flags, 0o600, dir_fd=folder)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _in_use_error(path) from None
            yield
        finally:
            os.close(lock)

    def _require_sole_writer(status: os.stat_result, file: ProtectedFile, path: Path) -> None:
        if status.st_uid != os.geteuid():
            raise file.unsafe_error("must belong to you", path)
        if status.st_mode & _OTHERS_WRITE_BITS:
            raise file.unsafe_error(f"must be writable by you alone (chmod go-w {path})", path)


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing, readable only by its owner. The file appears when the block ends without an error.

    Until then the bytes are in a temporary file, whose random name other users cannot predict. Devices and pipes are
    written directly, and links are followed, because a replacement would remove the device, pipe or link.
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
