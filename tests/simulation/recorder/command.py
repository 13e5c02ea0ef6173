"""Record what one commit answers, writes and sends, and compare two recordings.

    python -m tests.simulation.recorder record FOLDER [--seeds 200] [--first 0] [--processes 2] [--without-tests]
    python -m tests.simulation.recorder compare FOLDER FOLDER
    python -m tests.simulation.recorder against COMMIT [--seeds 200] [--processes 2] [--without-tests]

`record` writes a file of JSON lines for each seed of the coordinators' simulation, and one for each API test that
`shows` a row of the conformance table. `compare` exits with 1 when recordings differ by more than order and repeats.
`against` records this tree and COMMIT below build/recordings, and compares them. It records COMMIT in a separate work
tree, by this tree's recorder.

A seed's recording has every whole answer (status, code, specified headers, body) with its request, the events of
streams, the event log, each request to the relayer with its call and end, the logs of the final chain, every final
table, and the promises that broke. The same commit gives the same bytes.

A comparison shows:

- A change that adds or removes statements, tasks or awaits, but no waiting, usually leaves seeds identical: in a
  recorded simulation, statements and calls of the node take no time.
- A changed field, code, header, column or call appears by its name, and as a value that only one recording has.

A comparison does not show:

- A change of timing (a poll interval, a timeout, a retry) moves faults and kills to other moments, because the plan
  places them by the clock and by steps. Such a seed differs in much, and its differences are consequences. Read the
  first list, of values that only one recording has; the second list has values that only moved.
- Values of ids, hashes, signatures, times, block numbers, gas, nonces, etags and long bytes are replaced by their kind.
  A wrong one is not seen, unless it should equal another value in the same entry. Names of such fields are in `normal`.
- How often a poll was answered, and in which order things happened, is counted and not judged.
- Races: with the schedule fixed, other interleavings are left to `python -m tests.simulation.coordinator`.
- Webhooks, replicas, escrow handovers, sockets and `server/` take no part in the simulation. Of the API tests only the
  answers that fit a test's `shows` marks are recorded; where a test does not wait for a state, the state depends on the
  machine.
- Both commits are played by their own `tests/simulation` and their own API tests: a change of these is a difference.
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.simulation.coordinator.ground import Ground, ground
from tests.simulation.recorder.comparing import compare
from tests.simulation.recorder.entries import write
from tests.simulation.recorder.seeds import record_seed

ROOT: Final = Path(__file__).parents[3]
_RECORDINGS: Final = ROOT / "build" / "recordings"
_RECORDER: Final = "tests/simulation/recorder"
_PACKAGES: Final = "common/contracts/node_modules"
_API_TESTS: Final = "tests/integration/coordinatord"

_standing = ExitStack()
_grounds: list[Ground] = []


def main() -> None:
    options = _options(sys.argv[1:])
    if options.command == "compare":
        comparison = compare(options.one, options.other)
        print(*comparison.lines(), sep="\n")
        sys.exit(bool(comparison.found))
    if options.command == "against":
        sys.exit(_against(options))
    shutil.rmtree(options.folder, ignore_errors=True)
    record_seeds(options.folder, range(options.first, options.first + options.seeds), options.processes)
    if not options.without_tests:
        sys.exit(record_tests(options.folder, [_API_TESTS], options.processes))


def _against(options: argparse.Namespace) -> int:
    """Return the exit status of the first step that fails, otherwise that of the comparison."""
    shared = ["--seeds", str(options.seeds), "--processes", str(options.processes)]
    shared += ["--without-tests"] * options.without_tests
    here, base, tree = (_RECORDINGS / name for name in ("here", "base", "tree"))
    path = os.pathsep.join((str(ROOT / ".venv" / "bin"), os.environ["PATH"]))
    environment = {**os.environ, "PYTHONPATH": str(tree), "PATH": path}
    recorder = [sys.executable, "-m", "tests.simulation.recorder"]
    with _work_tree(options.commit, tree):
        return (
            subprocess.run([*recorder, "record", str(here), *shared], cwd=ROOT, check=False).returncode
            or subprocess.run(
                [*recorder, "record", str(base), *shared], cwd=tree, env=environment, check=False
            ).returncode
            or subprocess.run([*recorder, "compare", str(base), str(here)], cwd=ROOT, check=False).returncode
        )


@contextmanager
def _work_tree(commit: str, tree: Path) -> Iterator[None]:
    """Check the commit out, with this tree's recorder and installed packages."""
    remove = ["git", "worktree", "remove", "--force", str(tree)]
    subprocess.run(remove, cwd=ROOT, stderr=subprocess.DEVNULL, check=False)
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=ROOT, check=True)
    try:
        recorder = tree / _RECORDER
        shutil.rmtree(recorder, ignore_errors=True)
        shutil.copytree(ROOT / _RECORDER, recorder)
        (tree / _PACKAGES).symlink_to(ROOT / _PACKAGES)
        yield
    finally:
        subprocess.run(remove, cwd=ROOT, check=True)


def record_seeds(folder: Path, seeds: range, processes: int) -> None:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work,
        ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _stand, (work,)) as pool,
    ):
        tasks = [(seed, folder / "seeds" / f"{seed:04}.jsonl") for seed in seeds]
        for _ in pool.map(_record, tasks):
            pass


def record_tests(folder: Path, tests: Sequence[str], processes: int) -> int:
    """Return pytest's exit status."""
    arguments = ["-q", "-m", "shows", "-p", "tests.simulation.recorder.pytest_plugin", "-n", str(processes), *tests]
    environment = {**os.environ, "RECORD_TESTS": str((folder / "tests").absolute())}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode


def _stand(folder: str) -> None:
    """Start a chain and a database for this worker."""
    own = Path(folder, str(os.getpid()))
    own.mkdir()
    _grounds.append(_standing.enter_context(ground(own)))


def _record(task: tuple[int, Path]) -> None:
    seed, path = task
    write(path, record_seed(seed, _grounds[0]))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.recorder")
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="write a recording of this tree")
    record.add_argument("folder", type=Path)
    record.add_argument("--first", type=int, default=0, help="the first seed")
    against = commands.add_parser("against", help="record this tree and a commit, and report the differences")
    against.add_argument("commit")
    for recording in (record, against):
        recording.add_argument("--seeds", type=int, default=200, help="how many")
        recording.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="seeds, or tests, at a time")
        recording.add_argument("--without-tests", action="store_true", help="seeds alone")
    comparing = commands.add_parser("compare", help="report the differences of two recordings")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    return parser.parse_args(arguments)
