"""Stop the devnet of a state directory, from any terminal.

    python -m devnet.stop DIRECTORY

This module imports only the standard library, because `make clean` must work without the virtual environment.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from devnet.errors import DevnetError

_STOP_TIMEOUT_S: Final = 120.0  # more than the coordinator (45 s) and the provider (30 s) need together
_LOCK_POLL_INTERVAL_S: Final = 0.1


def stop_devnet(state_dir: Path) -> int | None:
    """Stop the devnet that runs in `state_dir`. Return its process id, or None if no devnet runs there."""
    lock = state_dir / "lock"
    if not lock.exists() or (process := _find_lock_holder(lock)) is None:
        return None
    if not _has_lock_open(process, lock):
        raise DevnetError(
            f"{state_dir.absolute()} is locked by a process that is not visible here, perhaps in another container: "
            "stop the devnet there"
        )
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return None
    except PermissionError:
        where = state_dir.absolute()
        raise DevnetError(f"process {process} runs a devnet in {where} as another user: stop it as that user") from None
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while _find_lock_holder(lock) == process:
        if time.monotonic() > deadline:
            logs = state_dir.absolute() / "logs"
            raise DevnetError(f"process {process} has not stopped after {_STOP_TIMEOUT_S:g} s: see {logs}")
        time.sleep(_LOCK_POLL_INTERVAL_S)
    return process


def _find_lock_holder(lock: Path) -> int | None:
    """Return the process id in the lock file if the file is locked, otherwise None."""
    try:
        file = lock.open(encoding="ascii")
    except PermissionError:
        raise DevnetError(f"{lock.absolute()} belongs to another user: stop the devnet as that user") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            written = file.read().strip()
            return int(written) if written.isdecimal() else None
    return None


def _has_lock_open(process: int, lock: Path) -> bool:
    """Return True if the process has the lock file open. If not, the process id is from another container."""
    if sys.platform != "linux":
        return True
    files = Path(f"/proc/{process}/fd")
    try:
        return any(os.path.samefile(file, lock) for file in files.iterdir() if file.exists())
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # another user's process, for which os.kill raises PermissionError


def main(arguments: list[str]) -> int:
    (state_dir,) = map(Path, arguments)
    try:
        process = stop_devnet(state_dir)
    except DevnetError as error:
        sys.stderr.write(f"devnet: {error}\n")
        return 1
    if process is not None:
        sys.stdout.write(f"stopped the devnet in {state_dir.absolute()} (process {process})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
