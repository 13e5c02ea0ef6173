"""Run the project's commands in the environments that newcomers use, and report where the commands work.

    python -m tests.install.environments [--list] [NAME ...]

Without names, all cases run one after another, the quick ones first. A case that this machine cannot run is reported as
skipped, not failed. Users and namespaces that a case creates are removed at its end.
"""

import argparse
import signal
import sys
import time
from types import FrameType

from tests.install.environments.debian import DEBIAN_CASES
from tests.install.environments.fresh import FRESH_CASES
from tests.install.environments.quick import QUICK_CASES
from tests.install.environments.room import ROOT, Case, Failed, room

CASES = {case.name: case for case in (*QUICK_CASES, *FRESH_CASES, *DEBIAN_CASES)}
_CACHES = ROOT / "build" / "environments"
_LOG_LINES = 400


def _tried(case: Case) -> str:
    began = time.monotonic()
    log = _CACHES / f"{case.name}.log"
    log.unlink(missing_ok=True)
    try:
        with room(_CACHES) as place:
            case.run(place)
    except Failed as failure:
        if not failure.output:
            return f"FAILED: {failure}"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("\n".join(failure.output.splitlines()[-_LOG_LINES:]) + "\n", encoding="utf-8")
        return f"FAILED: {failure}\n    its last {_LOG_LINES} lines are in {log.relative_to(ROOT)}"
    return f"holds ({time.monotonic() - began:.0f} s)"


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.install.environments")
    parser.add_argument("--list", action="store_true", help="the names, and what each stands for")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    options = parser.parse_args()
    if unknown := set(options.names) - CASES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    chosen = [CASES[name] for name in options.names] or list(CASES.values())
    if options.list:
        for case in chosen:
            print(f"{case.name:15} {case.what}")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # remove the case's folders and users
    print(f"environments: tries {len(chosen)} situations; a quick one takes seconds, one with a fresh copy two minutes")
    failed = held = 0
    for case in chosen:
        print(f"{case.name:15} {case.what} … ", end="", flush=True)
        if (reason := case.why_not()) is not None:
            print(f"not tried here: {reason}")
            continue
        result = _tried(case)
        print(result, flush=True)
        failed, held = failed + result.startswith("FAILED"), held + result.startswith("holds")
    print(f"environments: {held} hold, {failed} fail, {len(chosen) - held - failed} cannot be tried here")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
