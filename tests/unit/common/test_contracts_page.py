"""Tables of the contracts' pages, compared with the contracts and the gas snapshots."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Final

from common import artifacts

CONTRACTS: Final = Path(__file__).parents[3] / "common" / "contracts"
DOCS: Final = Path(__file__).parents[3] / "docs"
PAGE: Final = "\n".join((DOCS / name).read_text() for name in ("protocol/contracts.md", "contributors/contracts.md"))
# `relay` attaches this call to the post before it. Alone the call changes nothing, so its ABI says "pure".
ATTACHED: Final = "claimPosted"
REGISTRIES: Final = {"jobs": "JobRegistry", "providers": "ProviderRegistry", "asks": "AskRegistry"}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def table(title: str, columns: int) -> list[list[str]]:
    """Return the rows of the section's first table with this many columns, without the header."""
    lines = [line for line in section(title).splitlines() if line.startswith("|") and line.count("|") == columns + 1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_function_and_its_sender_is_listed() -> None:
    told: set[tuple[str, str]] = set()
    admins: set[tuple[str, str]] = set()
    for functions, where, sender in table("Who may send what", 3):
        for registry in REGISTRIES.values() if where == "each" else [REGISTRIES[where]]:
            named = {(registry, name) for name in re.findall(r"`(\w+)`", functions)}
            assert not named & told
            told |= named
            admins |= named if sender == "the admin" else set()
    written = {
        (registry, entry["name"])
        for registry in REGISTRIES.values()
        for entry in artifacts.load_artifact(registry).abi
        if entry["type"] == "function"
        and (entry["stateMutability"] not in ("view", "pure") or entry["name"] == ATTACHED)
    }
    assert told == written
    inherited = {"transferOwnership", "renounceOwnership"}
    assert {name for _, name in admins} == inherited | only_owner()


def only_owner() -> set[str]:
    sources = " ".join(path.read_text() for path in (CONTRACTS / "src").glob("*.sol") if "Token" not in path.name)
    return set(re.findall(r"function (\w+)\([^{;]*?\)[^{;]*?\bonlyOwner\b", sources))


def test_gas_is_that_of_the_snapshots() -> None:
    head = re.findall(r"\w+", next(line for line in section("Gas").splitlines() if line.startswith("| |")))
    files = {path.stem.replace("_", " "): json.loads(path.read_text()) for path in CONTRACTS.glob("snapshots/*.json")}
    rows = {row[0]: row[1:] for row in table("Gas", len(head) + 1)}
    expected = {
        name: [f"{round(int(gas[what]) / 1000)} k" if what in gas else "" for what in head]
        for name, gas in files.items()
    }
    assert rows == expected


def test_proofs_are_those_of_the_page() -> None:
    proofs = re.findall(
        r"function check_(\w+)", " ".join(path.read_text() for path in CONTRACTS.glob("symbolic/*.t.sol"))
    )
    assert f"runs the {len(proofs)} proofs of" in section("Proofs")
    assert len(table("Proofs", 2)) == sum("splits" in name for name in proofs)
    [refused] = [row for row in table("Proofs", 3) if row[0] == "other terms are refused"]
    ops = re.findall(r"\w+", refused[1].split(" with any values", 1)[0].replace(" and ", " "))
    assert set(ops) == {name.removesuffix("_of_other_terms_is_refused") for name in proofs if "other_terms" in name}


def test_every_external_function_has_natspec() -> None:
    missing = []
    for path in (CONTRACTS / "src" / "interfaces").glob("*.sol"):
        lines = path.read_text().splitlines()
        for before, line in pairwise(lines):
            if line.startswith("    function ") and not before.strip().startswith("///"):
                missing.append(f"{path.name}: {line.strip()}")
    assert missing == []
