"""Exit codes of the command line."""

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """Exit code of a command."""

    DONE = 0
    BUG = 1
    USAGE = 2
    REFUSED = 3
    TRY_AGAIN = 4
    NO_RESULT = 5
    STILL_RUNNING = 6
    NO_KEY = 7
    UNREADABLE = 8
    UNHEALTHY = 9
    INTERRUPTED = 130


EXIT_CODE_HELP: Final = {
    Exit.DONE: "done",
    Exit.BUG: "a bug in svc",
    Exit.USAGE: "wrong command line or input; nothing was sent",
    Exit.REFUSED: "rejected by the coordinator, the chain or svc's own checks; a retry fails too",
    Exit.TRY_AGAIN: "temporarily unavailable; the same command may succeed later",
    Exit.NO_RESULT: "the job or batch ended without a result, or with another than the provisional one",
    Exit.STILL_RUNNING: "the job or batch is still running, or may be",
    Exit.NO_KEY: "no wallet key, or one that cannot be used",
    Exit.UNREADABLE: "the result could not be read, verified or written",
    Exit.UNHEALTHY: "doctor found something wrong",
    Exit.INTERRUPTED: "interrupted",
}
