"""Stopping the devnet of a state directory, wherever it was started.

    python -m devnet.stop DIRECTORY

For `devnet down`, and for `make clean`, which has to work without the virtual environment: nothing but the standard
library is imported here.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from devnet.errors import DevnetError

_SECONDS: Final = 120.0  # the daemons have up to 45 s each to finish what they are at
_LOOK_SECONDS: Final = 0.1


def stop(state_dir: Path) -> int | None:
    """Ends the devnet that runs in `state_dir`, in order, and returns its process id; None when there is none."""
    lock = state_dir / "lock"
    if not lock.exists() or (process := _holder(lock)) is None:
        return None
    if not _holds(process, lock):
        raise DevnetError(f"{state_dir.absolute()} is held by a process that cannot be seen from here: stop it by hand")
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return None
    except PermissionError:
        where = state_dir.absolute()
        raise DevnetError(f"process {process} runs a devnet in {where} as another user: stop it as that user") from None
    deadline = time.monotonic() + _SECONDS
    while _holder(lock) == process:
        if time.monotonic() > deadline:
            raise DevnetError(f"process {process} has not ended in {_SECONDS:g} s: see {state_dir.absolute() / 'logs'}")
        time.sleep(_LOOK_SECONDS)
    return process


def _holder(lock: Path) -> int | None:
    """The process id in the lock while somebody holds it."""
    try:
        file = lock.open(encoding="ascii")
    except PermissionError:
        raise DevnetError(f"{lock.absolute()} is another user's: only that user can stop what runs there") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            written = file.read().strip()
            return int(written) if written.isdecimal() else None
    return None


def _holds(process: int, lock: Path) -> bool:
    """Whether it is this very file that the process has open: the id may be another's, of another container."""
    if sys.platform != "linux":
        return True
    files = Path(f"/proc/{process}/fd")
    try:
        return any(os.path.samefile(file, lock) for file in files.iterdir() if file.exists())
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # another user's: the signal will tell


def main(arguments: list[str]) -> int:
    (state_dir,) = map(Path, arguments)
    try:
        process = stop(state_dir)
    except DevnetError as error:
        sys.stderr.write(f"devnet: {error}\n")
        return 1
    if process is not None:
        sys.stdout.write(f"stopped the devnet in {state_dir.absolute()} (process {process})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
