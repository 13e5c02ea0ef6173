"""Trees with one planted fault: a patch against the current tree."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_CONTRACTS: Final = Path("common", "contracts")
_LEFT_OUT: Final = ("build", ".git")


def plant(patch: Path, tree: Path) -> None:
    """Make a tree with the patch applied. Folders that the patch changes are copies, and all others are links. Raise
    RuntimeError if the patch no longer applies."""
    changed = {line.split("/")[1] for line in patch.read_text().splitlines() if line.startswith("+++ b/")}
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name in changed:
            shutil.copytree(
                entry, tree / entry.name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"), symlinks=True
            )
        elif entry.name not in _LEFT_OUT:
            (tree / entry.name).symlink_to(entry)
    if _CONTRACTS.parts[0] in changed:
        (tree / _CONTRACTS / "node_modules").symlink_to(ROOT / _CONTRACTS / "node_modules")
    # Keep Git from using the surrounding repository.
    around = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    applied = subprocess.run(
        ["git", "apply", "--verbose", str(patch)], cwd=tree, env=around, capture_output=True, text=True, check=False
    )
    if applied.returncode or "Applied patch" not in applied.stderr:
        raise RuntimeError(f"{patch.name} does not apply to the tree as it is: renew it. {applied.stderr}")


def plant_and_compile(patch: Path, tree: Path) -> None:
    """Make a tree with the patch applied, and compile contracts that it changes."""
    plant(patch, tree)
    if ".sol\n" in patch.read_text():
        contracts = tree / _CONTRACTS
        subprocess.run(["node", "build.mjs", str(contracts)], cwd=contracts, check=True)
