"""Coverage-guided fuzzing: `python -m tests.fuzz [NAME …] --seconds S`, or `--replay FILE` for an input that ended a
run.

Atheris (libFuzzer) is expected in .venv-fuzz, where `make fuzz` installs it. Each target runs in a separate process
because libFuzzer ends its process.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from types import FrameType
from typing import IO, Final

from tests.fuzz.target import NAMES, target_of

ROOT: Final = Path(__file__).parents[2]
FOUND: Final = ROOT / "build" / "fuzz"
_INSTRUMENTED: Final = ("common", "coordinatord", "svc", "svcd", "h11", "python_multipart")
_OURS: Final = tuple(str(ROOT / package) + os.sep for package in ("common", "coordinatord", "svc", "svcd"))
_LONGEST_KEPT: Final = 1024  # limit of bytes per committed input, and of inputs per target
_MAX_KEPT: Final = 100

Step = tuple[str, int, int]  # file, from line, to line


def _fuzz(name: str, arguments: list[str]) -> None:
    """Fuzz in the process of one target. Does not return."""
    sys.path.insert(0, str(ROOT / ".venv-fuzz"))
    import atheris  # noqa: PLC0415 - of an environment of its own

    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        check = target_of(name).check

    def kept(data: bytes) -> None:
        """Save the input. libFuzzer also saves crashing inputs, but not if an exception ends the process first."""
        try:
            check(data)
        except BaseException:
            path = FOUND / name / f"found-{hashlib.sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            print(f"Test unit written to {path}", flush=True)
            raise

    atheris.Setup([name, *arguments], kept)
    atheris.Fuzz()


def _inside(name: str, arguments: list[str], out: IO[bytes], act: str = "--inside") -> CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tests.fuzz", act, name, *arguments]
    return subprocess.run(command, stdout=out, stderr=out, cwd=ROOT, check=False)


def _run(name: str, seconds: int, keep: bool) -> bool:
    """Return True if nothing was found."""
    target, found = target_of(name), FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    seeded = found / "corpus"
    seeded.mkdir(exist_ok=True)
    for number, data in enumerate([*target.seeds(), *target.corpus()]):
        (seeded / f"seed-{number}").write_bytes(data)
    words = found / "words"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words))
    shared = [f"-max_len={target.longest}", f"-artifact_prefix={found}/", "-timeout=10", "-rss_limit_mb=2048"]
    began, log = time.monotonic(), found / "log"
    print(f"fuzz: {name} for {seconds} s; its progress is in {log}", flush=True)
    with log.open("wb") as out:
        spent = [f"-max_total_time={seconds}", "-print_final_stats=1", *shared, str(seeded)]
        if target.words:  # libFuzzer exits on an empty dictionary
            spent.append(f"-dict={words}")
        done = _inside(name, spent, out)
    text = log.read_text(errors="replace")
    runs = next(
        (line.split()[1] for line in reversed(text.splitlines()) if line.startswith("stat::number_of_exec")), "?"
    )
    if done.returncode:
        kept = [line.split()[-1] for line in text.splitlines() if "Test unit written to" in line]
        print(text[-6000:])
        print(f"fuzz: {name} found something. Again: python -m tests.fuzz {name} --replay {' '.join(kept) or log}")
        return False
    if keep:
        with log.open("ab") as out:
            _inside(name, [], out, "--distil").check_returncode()
    print(f"fuzz: {name} holds after {runs} runs in {time.monotonic() - began:.0f} s", flush=True)
    return True


def _keep(name: str) -> None:
    """Copy into the committed corpus the shortest inputs that together take every line-to-line step of the run's
    corpus. libFuzzer's merge restarts itself as a program, which a Python module cannot do."""
    target = target_of(name)
    found = {path.read_bytes() for path in (FOUND / name / "corpus").iterdir()} | set(target.corpus())
    taken: set[Step] = set()
    for data in target.seeds():
        taken |= _steps(target.check, data)
    kept = []
    for data in sorted(found - set(target.seeds()), key=lambda data: (len(data), data)):
        if len(data) <= _LONGEST_KEPT and len(kept) < _MAX_KEPT and not (steps := _steps(target.check, data)) <= taken:
            taken |= steps
            kept.append(data)
    target.keep(kept)
    print(f"fuzz: {name} keeps {len(kept)} of {len(found)} inputs", flush=True)


def _steps(check: Callable[[bytes], object], data: bytes) -> set[Step]:
    steps: set[Step] = set()
    before = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal before
        place = frame.f_code.co_filename
        if not place.startswith(_OURS):
            return None
        if event == "line":
            steps.add((place, before, frame.f_lineno))
            before = frame.f_lineno
        return trace

    sys.settrace(trace)
    try:
        check(data)
    finally:
        sys.settrace(None)
    return steps


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        _fuzz(sys.argv[2], sys.argv[3:])
    if sys.argv[1:2] == ["--distil"]:
        _keep(sys.argv[2])
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all of them where none is given"
    )
    parser.add_argument("--seconds", type=int, default=60, help="for each target, or with --together for all of them")
    parser.add_argument("--together", action="store_true", help="share the seconds among the targets")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time, each in a process")
    parser.add_argument("--keep", action="store_true", help="renew the committed corpus from what was reached")
    parser.add_argument(
        "--replay", type=Path, nargs="+", metavar="FILE", help="give these to the one target, and no others"
    )
    chosen = parser.parse_args()
    names = chosen.names or list(NAMES)
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"NAME must be one of {', '.join(NAMES)}, not {unknown[0]}")
    if chosen.replay:
        if len(chosen.names) != 1:
            parser.error("--replay is for one target: name it")
        for path in chosen.replay:
            target_of(names[0]).replay(path.read_bytes())
            print(f"fuzz: {names[0]} holds for {path}")
        return 0
    os.environ["PYTHONHASHSEED"] = "0"
    seconds = max(1, chosen.seconds * chosen.jobs // len(names)) if chosen.together else chosen.seconds
    with ThreadPoolExecutor(chosen.jobs) as lanes:
        held = list(lanes.map(lambda name: _run(name, seconds, chosen.keep), names))
    failed = [name for name, holds in zip(names, held, strict=True) if not holds]
    print(
        f"fuzz: {len(names) - len(failed)} of {len(names)} targets hold"
        + (f"; not {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
