"""Print a benchmark's tables on the terminal, and write all other output to a file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

_OUT, _ERR = 1, 2
_MODE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@contextmanager
def logged(log: Path) -> Iterator[TextIO]:
    """Redirect output of this process and its children to `log`, which is truncated first.

    Yields a writer to the original standard error. The file descriptors themselves are replaced, because daemons
    inherit them.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = {number: os.dup(number) for number in (_OUT, _ERR)}
    _flush()
    file = os.open(log, _MODE, 0o644)
    for number in kept:
        os.dup2(file, number)
    os.close(file)
    try:
        with os.fdopen(os.dup(kept[_ERR]), "w", encoding="utf-8") as terminal:
            yield terminal
    finally:
        _flush()
        for number, former in kept.items():
            os.dup2(former, number)
            os.close(former)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
