"""The directory of one local world: claimed for as long as it runs, emptied before and after.

    lock             held while a world runs; holds its process id
    devnet.json      how to attach (see devnet.manifest)
    addresses.json   its address book, for clients to pin
    known/           what its clients came to know of it
    anvil/ postgres/ pins/ provider/   what the services keep
    logs/            one file per service; kept until the next start

Chain, database and objects refer to each other, and the chain lives in memory: what an earlier run left is of
no use, so every start begins empty.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

import attrs

from devnet.errors import DevnetError

_LOCK: Final = "lock"
_MANIFEST: Final = "devnet.json"
_ADDRESSES: Final = "addresses.json"
_SERVICES: Final = ("anvil", "postgres", "pins", "provider")
_KNOWN: Final = "known"
_LOGS: Final = "logs"
_MIB: Final = 2**20
_NEEDED_BYTES: Final = 200 * _MIB  # twice what an empty market takes
_ENDING_SECONDS: Final = 10.0


@attrs.frozen
class StateDir:
    path: Path
    left_by_dead_run: bool  # something was there to clear

    @property
    def manifest(self) -> Path:
        return self.path / _MANIFEST

    @property
    def logs(self) -> Path:
        return self.path / _LOGS

    @property
    def anvil(self) -> Path:
        return self.path / "anvil"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def pins(self) -> Path:
        return self.path / "pins"

    @property
    def provider(self) -> Path:
        return self.path / "provider"


@contextmanager
def claimed(path: Path) -> Iterator[StateDir]:
    """Hold `path` for this process alone, empty at first and but for the logs emptied at the end."""
    path = path.absolute()
    with ExitStack() as held:
        try:
            _require_ours(path)
            # The lock dies with the process that holds it, however that ends; a file with a process id would not.
            lock = held.enter_context(os.fdopen(os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+"))
            _take(lock, path)
            left_over = _clear(path)
            shutil.rmtree(path / _LOGS, ignore_errors=True)
            state = StateDir(path, left_by_dead_run=left_over)
            for directory in (state.logs, state.anvil, state.postgres, state.pins, state.provider):
                directory.mkdir()
        except OSError as error:
            raise DevnetError(
                f"cannot use {path} as state directory ({error.filename or path}: {error.strerror}; it may be another "
                "user's): choose one with --state-dir"
            ) from None
        try:
            yield state
        finally:
            _clear(path)


def _take(lock: TextIO, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = lock.read().strip() or "unknown"
        raise DevnetError(
            f"another devnet (process {holder}) runs in {path}: "
            "stop it (devnet down), or choose another directory with --state-dir"
        ) from None
    except OSError as error:
        raise DevnetError(
            f"{path} lies on a file system without locks ({error.strerror}): "
            "choose a directory on another with --state-dir"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()


def _require_ours(path: Path) -> None:
    """Nothing is deleted from a directory that a devnet did not make."""
    path.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path).free
    if free < _NEEDED_BYTES:
        raise DevnetError(
            f"{free // _MIB} MiB are left on the disk of {path}, and {_NEEDED_BYTES // _MIB} MiB are needed: "
            "free some, or choose a directory on another disk with --state-dir"
        )
    if not (path / _LOCK).exists() and any(path.iterdir()):
        raise DevnetError(
            f"{path} holds files that are not a devnet's: choose a new or empty directory with --state-dir"
        )


def _clear(path: Path) -> bool:
    found = (path / _MANIFEST).exists()
    (path / _MANIFEST).unlink(missing_ok=True)  # first: nobody attaches to what is going away
    (path / _ADDRESSES).unlink(missing_ok=True)
    for name in (*_SERVICES, _KNOWN):
        if (path / name).exists():
            _remove(path / name)
            found = True
    return found


def _remove(directory: Path) -> None:
    """Services of a run that was killed may be writing there until they are gone, too."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while directory.exists():
        try:
            shutil.rmtree(directory)
        except OSError as error:
            if isinstance(error, PermissionError):
                if os.geteuid() != 0:
                    raise
                _take_back(directory)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _take_back(directory: Path) -> None:
    """For root, which may own whatever it likes, and cannot everywhere look into what another account has closed."""
    with suppress(PermissionError):
        for folder, _, _ in os.walk(directory):
            for name in os.listdir(folder):
                os.chown(Path(folder, name), os.geteuid(), os.getegid(), follow_symlinks=False)
