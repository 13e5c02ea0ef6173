"""Plant faults in the market one by one. The soak must find each.

    python -m tests.soak.planted [name …]

A fault is a patch in this folder against the current tree. A patch that no longer applies fails. It is applied to a
copy below `build/`, which is soaked until it should meet the fault. A fault counts as found only if the report names
the invariant that it breaks, because other violations may be chance. Exits with 1 when a fault was not found.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from tests.support.planted import ROOT, plant_and_compile

PATCHES: Final = Path(__file__).parent
WORK: Final = ROOT / "build" / "planted-soak"
_TIMEOUT_S: Final = 1200
_PATIENCE_S: Final = 40.0  # jobs that end later are violations


@attrs.frozen
class Planted:
    """`breaks` is the invariant that must report the fault, and `says` is a word of its report. `faults` are the soak's
    faults that the market must meet to show it."""

    breaks: str
    says: str
    faults: tuple[str, ...] = ()
    minutes: float = 1.0


PLANTED: Final = {
    "every_job_fails": Planted("I13", "finished within"),
    "broadcast_before_stored": Planted("I10", "before its bytes were committed"),
    "undo_skips_a_table": Planted("I4", "", ("reorg",)),
    "cost_read_wrongly": Planted("I4", "'cost'"),
    "lease_given_to_two": Planted("I9", "held it"),
    "wrong_cid_kept": Planted("I7", "is not what was stored"),
    "session_limit_not_held": Planted("I8", "sessions"),
    "nonce_not_used_up": Planted("I8", "nonce"),
    "expired_session_honoured": Planted("I8", "expired was honoured"),
    "credit_forgotten": Planted("I5", "has a credit of", ("token_paused",), minutes=1.5),
    "line_left_out_of_its_file": Planted("I6", "lines"),
    "nothing_is_reclaimed": Planted("I1", "still claimed after their window", minutes=2.0),
    "promised_and_dropped": Planted("I1", "was promised and not posted", ("relayer_empty",), minutes=1.5),
}


def names() -> list[str]:
    return sorted(path.stem for path in PATCHES.glob("*.patch"))


def found(name: str) -> str | None:
    """Soak the tree with this fault. Return the report of the invariant that it breaks, or None."""
    planted, tree = PLANTED[name], WORK / name
    plant_and_compile(PATCHES / f"{name}.patch", tree)
    out = tree / "out"
    options = ["--minutes", f"{planted.minutes:g}", "--patience", f"{_PATIENCE_S:g}"]
    options += ["--faults", ",".join(planted.faults) or "none", "--fault-every", "3"]
    run = subprocess.run(
        [sys.executable, "-m", "tests.soak", *options, "--out", str(out)],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if not (out / "soak.json").exists():
        raise RuntimeError(f"the soak of {name} did not run: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    told = json.loads((out / "soak.json").read_text())["invariants"]
    detail: str = told[planted.breaks]["detail"]
    lines = [line for line in detail.split("; ") if planted.says in line]
    return None if told[planted.breaks]["holds"] or not lines else lines[0]


def tried(chosen: Sequence[str]) -> list[str]:
    """Soak and report each fault. Return the faults that were not found."""
    missed = []
    for name in chosen:
        began = time.monotonic()
        try:
            said, why = found(name), f"{PLANTED[name].breaks} does not say so"
        except RuntimeError as wrong:  # try the other faults anyway
            said, why = None, str(wrong)
        if said is None:
            missed.append(name)
        told = said[:300] if said is not None else f"NOT FOUND: {why}"
        print(f"{name} ({time.monotonic() - began:.0f} s): {told}", flush=True)
    return missed


if __name__ == "__main__":
    if missed := tried(sys.argv[1:] or names()):
        sys.exit(f"not found: {', '.join(missed)}")
