"""A process that makes lines of a batch: `python -m svc.batches.worker`, started by `svc.batches.pool`.

    message = length (8, big-endian) ‖ pickle

The first message is the place and the wallet, each further one a portion of lines; each portion is answered by one
message. It ends when its input ends, however its parent ended. The two are one program and one user: the pickles
cross no border of trust, and the key that they carry stays in memory.
"""

import pickle
import sys
from contextlib import suppress
from struct import Struct
from typing import IO, Any, Final

from svc.core.batches import prepare_lines

if sys.platform == "linux":
    import fcntl

LENGTH: Final = Struct(">Q")
PIPE_BYTES: Final = 1 << 20


def framed(value: object) -> bytes:
    written = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(written)) + written


def unframed(raw: bytes) -> Any:
    return pickle.loads(raw)  # noqa: S301 - written by our own other half


def _receive(source: IO[bytes]) -> Any:
    head = source.read(LENGTH.size)
    return unframed(source.read(*LENGTH.unpack(head))) if len(head) == LENGTH.size else None


if sys.platform == "linux":

    def _widen(pipe: IO[bytes]) -> None:
        """A portion fits in: neither side then waits for the other in the middle of one."""
        with suppress(OSError):  # more than this user may have
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

else:

    def _widen(_: IO[bytes]) -> None:
        """Nothing: pipes are as wide here as they are."""


def main() -> None:
    source, target = sys.stdin.buffer, sys.stdout.buffer
    for pipe in (source, target):
        _widen(pipe)
    sys.stdout = sys.stderr  # whatever a library prints must not get among the answers
    first = _receive(source)
    if first is None:
        return
    place, wallet = first
    while (portion := _receive(source)) is not None:
        target.write(framed(prepare_lines(place, wallet, portion)))
        target.flush()


if __name__ == "__main__":
    main()
