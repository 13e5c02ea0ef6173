"""Exit codes of the command line."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
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
    ExitCode.DONE: "done",
    ExitCode.BUG: "a bug in svc",
    ExitCode.USAGE: "wrong command line or input; nothing was sent",
    ExitCode.REFUSED: "rejected by the coordinator, the chain or svc's own checks; a retry fails too",
    ExitCode.TRY_AGAIN: "temporarily unavailable; the same command may succeed later",
    ExitCode.NO_RESULT: "the job or batch ended without a result, or with another result than the provisional one",
    ExitCode.STILL_RUNNING: "the job or batch is still running, or may be",
    ExitCode.NO_KEY: "no wallet key, or the wallet key cannot be used",
    ExitCode.UNREADABLE: "the result could not be read, verified or written",
    ExitCode.UNHEALTHY: "doctor found something wrong",
    ExitCode.INTERRUPTED: "interrupted",
}
