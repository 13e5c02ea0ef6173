"""Exit codes, for scripts: what ended, and whether the same command may be tried again."""

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
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


MEANINGS: Final = {
    Exit.DONE: "done",
    Exit.BUG: "an unexpected failure of svc itself",
    Exit.USAGE: "the command line or its input is wrong; nothing was sent",
    Exit.REFUSED: "refused by the coordinator, the chain or svc's own checks; the same again is refused again",
    Exit.TRY_AGAIN: "not now: unreachable, busy or catching up; the same command may succeed later",
    Exit.NO_RESULT: "the job or batch ended without a result (failed, cancelled, expired), or not with the one shown",
    Exit.STILL_RUNNING: "the job or batch goes on (the wait was over first, there is no result yet), or may well do",
    Exit.NO_KEY: "no wallet key, or not one that may be used",
    Exit.UNREADABLE: "the result could not be read from a gateway or written here, or is not what was paid for",
    Exit.UNHEALTHY: "doctor found something wrong",
    Exit.INTERRUPTED: "interrupted",
}
