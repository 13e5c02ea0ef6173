"""Plant faults in svcd and coordinatord one by one. A simulation must find each.

    python -m tests.simulation.planted [name …]

A fault is a patch in this folder (for coordinatord and the contracts: in `coordinator/`) against the current tree. A
patch that no longer applies fails. It is applied to a copy below `build/`. The first line of a patch may be `Seed: N`:
this seed is simulated first. Exits with 1 if a fault is not found by it and by the seeds 0 to 199.
"""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.support.planted import ROOT, plant_and_compile

PATCHES: Final = Path(__file__).parent
WORK: Final = ROOT / "build" / "planted"
SEEDS: Final = 200
_OF_COORDINATOR: Final = "coordinator"  # folder of faults for coordinatord
_FOUND: Final = " breaks what a "
_KNOWN_SEED: Final = re.compile(r"Seed: (\d+)\n")


def names() -> list[str]:
    """Return fault names. Those for coordinatord include their folder."""
    return sorted(str(path.relative_to(PATCHES).with_suffix("")) for path in PATCHES.rglob("*.patch"))


def found(name: str) -> str | None:
    """Simulate the tree with this fault. Return the violation found, or None."""
    tree, patch = WORK / name, PATCHES / f"{name}.patch"
    plant_and_compile(patch, tree)
    known = _KNOWN_SEED.match(patch.read_text())
    if known and (said := _simulated(name, tree, first=int(known[1]), seeds=1)) is not None:
        return said
    return _simulated(name, tree, first=0, seeds=SEEDS)


def _simulated(name: str, tree: Path, *, first: int, seeds: int) -> str | None:
    program = "tests.simulation.coordinator" if name.startswith(_OF_COORDINATOR) else "tests.simulation"
    run = subprocess.run(
        [sys.executable, "-m", program, "--first", str(first), "--seeds", str(seeds), "--until-found"],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    if run.returncode == 1 and _FOUND in run.stdout:
        return run.stdout
    if run.returncode == 0:
        return None
    raise RuntimeError(f"the simulation of {name} did not run: {run.stdout[-2000:]}{run.stderr[-2000:]}")


def main() -> None:
    missed = []
    for name in sys.argv[1:] or names():
        began = time.monotonic()
        said = found(name)
        if said is None:
            missed.append(name)
        lines = said.strip().splitlines() if said is not None else [f"not found in {SEEDS} seeds"]
        print(f"{name} ({time.monotonic() - began:.0f} s): {lines[0]}\n" + "\n".join(lines[1:3]), flush=True)
    if missed:
        sys.exit(f"not found: {', '.join(missed)}")


if __name__ == "__main__":
    main()
