"""Lock and empty the state directory of one devnet.

lock                                locked while a devnet runs; contains the devnet's process id
devnet.json                         addresses and keys for other programs (see devnet.manifest)
addresses.json                      the address book, for clients
known/                              the clients' known-markets file
anvil/ postgres/ pins/ provider/    files of the services
logs/                               one file per service; deleted at the next start

Every devnet starts empty: the chain exists only in memory, and database and objects are useless without that chain.
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

_LOCK_FILE: Final = "lock"
_MANIFEST_FILE: Final = "devnet.json"
_ADDRESSES_FILE: Final = "addresses.json"
_SERVICE_DIRECTORIES: Final = ("anvil", "postgres", "pins", "provider")
_KNOWN_MARKETS_FOLDER: Final = "known"
_LOGS_FOLDER: Final = "logs"
_MIB: Final = 2**20
_NEEDED_BYTES: Final = 200 * _MIB  # twice the size of an empty market
_REMOVE_TIMEOUT_S: Final = 10.0


@attrs.frozen
class StateDir:
    path: Path
    removed_leftovers: bool  # this start deleted files of a killed run

    @property
    def manifest(self) -> Path:
        return self.path / _MANIFEST_FILE

    @property
    def logs(self) -> Path:
        return self.path / _LOGS_FOLDER

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
def claim_state_dir(path: Path) -> Iterator[StateDir]:
    """Lock the directory `path` for this process and empty it. At the end, delete everything except the logs."""
    path = path.absolute()
    with ExitStack() as stack:
        try:
            _require_usable(path)
            # The kernel releases the lock when this process ends. A process id in a file could be stale.
            lock = stack.enter_context(os.fdopen(os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600), "r+"))
            _lock_state_dir(lock, path)
            has_leftovers = _clear_directory(path)
            shutil.rmtree(path / _LOGS_FOLDER, ignore_errors=True)
            state = StateDir(path, removed_leftovers=has_leftovers)
            for directory in (state.logs, state.anvil, state.postgres, state.pins, state.provider):
                directory.mkdir()
        except OSError as error:
            raise DevnetError(
                f"cannot use {path} as state directory ({error.filename or path}: {error.strerror}; it may belong to "
                "another user): choose another directory with --state-dir"
            ) from None
        try:
            yield state
        finally:
            _clear_directory(path)


def _lock_state_dir(lock: TextIO, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = lock.read().strip() or "unknown"
        raise DevnetError(
            f"another devnet (process {holder}) runs in {path}: "
            "stop it with `devnet down`, or choose another directory with --state-dir"
        ) from None
    except OSError as error:
        raise DevnetError(
            f"the file system of {path} does not support locks ({error.strerror}): "
            "choose a directory on another file system with --state-dir"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()


def _require_usable(path: Path) -> None:
    """Create the directory. Raise `DevnetError` if its disk is nearly full, or if it contains files of another program,
    because a devnet deletes the files in its directory."""
    path.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path).free
    if free < _NEEDED_BYTES:
        raise DevnetError(
            f"the disk of {path} has {free // _MIB} MiB free; a devnet needs {_NEEDED_BYTES // _MIB} MiB: "
            "free some space, or choose a directory on another disk with --state-dir"
        )
    if not (path / _LOCK_FILE).exists() and any(path.iterdir()):
        raise DevnetError(
            f"{path} contains files that no devnet created: choose a new or empty directory with --state-dir"
        )


def _clear_directory(path: Path) -> bool:
    """Delete the files of a devnet, except the logs. Return True if there were any."""
    found = (path / _MANIFEST_FILE).exists()
    (path / _MANIFEST_FILE).unlink(missing_ok=True)  # first, so that no program uses a devnet that is stopping
    (path / _ADDRESSES_FILE).unlink(missing_ok=True)
    for name in (*_SERVICE_DIRECTORIES, _KNOWN_MARKETS_FOLDER):
        if (path / name).exists():
            _remove_directory(path / name)
            found = True
    return found


def _remove_directory(directory: Path) -> None:
    """Remove a directory. Retry while services of a killed run still write to the directory."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT_S
    while directory.exists():
        try:
            shutil.rmtree(directory)
        except OSError as error:
            if isinstance(error, PermissionError):
                if os.geteuid() != 0:
                    raise
                _take_ownership(directory)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _take_ownership(directory: Path) -> None:
    """Make root the owner of all files: in some containers, root cannot enter other users' directories."""
    with suppress(PermissionError):
        for folder, _, _ in os.walk(directory):
            for name in os.listdir(folder):
                os.chown(Path(folder, name), os.geteuid(), os.getegid(), follow_symlinks=False)
