"""Runs mutants of the contracts in a copy of their folder, and compiles the tests only once.

The tests deploy contracts from artifacts (`dynamic_test_linking`), so only the contracts that contain a mutant are
compiled, and their code replaces that in forge's artifacts. The compiler process stays loaded, without the optimiser
and the intermediate representation, which takes one second instead of ten. The tests must pass on this code before any
mutant is tried.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import attrs

from tests.mutation.mutants import Mutant

ROOT: Final = Path(__file__).parents[2]
CONTRACTS: Final = ROOT / "common" / "contracts"
WORK: Final = ROOT / "build" / "mutation"
DEPLOYED: Final = ("JobRegistry", "ProviderRegistry", "AskRegistry")
QUICK: Final = {"evmVersion": "cancun", "metadata": {"appendCBOR": False, "bytecodeHash": "none"}}
PATIENCE: Final = 300.0  # seconds for the tests of one mutant; longer means an endless loop
# Fewer runs than `make contracts-test`, with fixed seeds. A mutant that only long fuzzing finds counts as survived.
FORGE_SETTINGS: Final = {
    "FOUNDRY_FUZZ_RUNS": "32",
    "FOUNDRY_FUZZ_SEED": "0x1",
    "FOUNDRY_INVARIANT_RUNS": "6",
    "FOUNDRY_INVARIANT_DEPTH": "40",
}
_LONG: Final = "ConservationTest|HostileMarketTest|VectorsTest"
# Number of tests that run first, chosen by how many mutants of the file they killed before.
_FIRST: Final = 16
# At each start, forge requests the compiler's version and the same outline of all sources.
_SHIM: Final = """\
#!/bin/sh
# The compiler with a memory.
set -e
here=$(cd "$(dirname "$0")" && pwd)
for argument; do
  test "$argument" = --version && { cat "$here/version"; exit 0; }
done
mkdir -p "$here/answers"
cat >"$here/answers/request"
answer="$here/answers/$(sha256sum <"$here/answers/request" | cut -d ' ' -f 1)"
if ! test -e "$answer"; then
  node "$here/compiler.cjs" <"$here/answers/request" >"$answer.new"
  mv "$answer.new" "$answer"
fi
cat "$answer"
"""
_POSTED: Final = """
    struct Told {
        bytes32 c; uint32 slaSecs; uint128 rateIn; uint128 rateOut; uint32 unitsIn; uint32 unitsOut; uint32 designated;
        uint64 expiresAt; uint16 feeBps; uint128 gasFee; string taskCid; bytes paySig;
    }

    function _tellPosted(
        bytes32 jobId, address owner, Order calldata o, Fees memory terms, string memory taskCid, bytes memory paySig
    ) private {
        Told memory t;
        (t.c, t.slaSecs, t.rateIn, t.rateOut) = (o.c, o.slaSecs, o.rateIn, o.rateOut);
        (t.unitsIn, t.unitsOut, t.designated, t.expiresAt) = (o.unitsIn, o.unitsOut, o.designated, o.expiresAt);
        (t.feeBps, t.gasFee, t.taskCid, t.paySig) = (terms.feeBps, terms.gasFee, taskCid, paySig);
        bytes memory data = abi.encode(t);
        (bytes32 topic, uint256 modelId) = (JobPosted.selector, o.modelId);
        assembly { log4(add(data, 64), sub(mload(data), 32), topic, jobId, owner, modelId) }
    }
}
"""


@attrs.frozen
class Outcome:
    name: str
    """killed, survived, invalid (does not compile) or same (the deployed code is the same)."""
    by: str = ""
    """The killing test, as file:contract:test."""


def sources() -> dict[str, str]:
    return {f"src/{path.name}": path.read_text() for path in sorted((CONTRACTS / "src").glob("*.sol"))}


def relieved(written: dict[str, str]) -> dict[str, str]:
    """Return the same contracts, rewritten for a code generator that has only sixteen stack slots. Slices of
    calldata take two slots, and the event of a post has too many fields. Mutants never change the rewritten
    statement."""
    result = dict(written)
    for name in ("JobRegistry", "Escrow", "Signatures"):
        result[f"src/{name}.sol"] = re.sub(r"\b(bytes|string) calldata", r"\1 memory", result[f"src/{name}.sol"])
    relayed = result["src/Relayed.sol"]
    result["src/Relayed.sol"] = relayed.replace("bytes calldata signature", "bytes memory signature")
    for path in ("src/Escrow.sol", "src/Signatures.sol"):
        result[path] = result[path].replace("tryRecoverCalldata", "tryRecover").replace("parseCalldata", "parse")
    jobs, count = re.subn(
        r"emit JobPosted\(.*?\);",
        "_tellPosted(jobId, owner, order, terms, taskCid, paySig);",
        result["src/JobRegistry.sol"],
        flags=re.DOTALL,
    )
    if count != 1:
        raise AssertionError(f"JobRegistry.sol emits JobPosted {count} times: adapt `relieved`")
    result["src/JobRegistry.sol"] = jobs.rstrip().removesuffix("}") + _POSTED
    return result


class Compiler:
    """A compiler process that stays loaded."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", str(Path(__file__).with_name("compiler.mjs")), str(CONTRACTS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def compiled(self, written: dict[str, str], wanted: list[str], settings: dict[str, Any]) -> dict[str, Any]:
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None
        assert answers is not None
        given.write(json.dumps({"sources": written, "wanted": wanted, "settings": settings}) + "\n")
        given.flush()
        line = answers.readline()
        if not line:
            raise RuntimeError("the compiler has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Bench:
    """A copy of the folder, in which one mutant at a time is tried."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._written = sources()
        self.folder = WORK / "common" / "contracts"
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("src", "test", "foundry.toml", "package.json"):
            _copied(CONTRACTS / name, self.folder / name)
        for link, target in (
            (self.folder / "node_modules", CONTRACTS / "node_modules"),
            (WORK / "tests", ROOT / "tests"),
        ):
            if not link.exists():
                link.symlink_to(target)
        _copied(CONTRACTS / "solc-shim", self.folder / "compiler.cjs")
        version = subprocess.run(
            ["node", str(self.folder / "compiler.cjs"), "--version"],
            check=True,
            capture_output=True,
        )
        (self.folder / "version").write_bytes(version.stdout)
        shim = self.folder / "solc-shim"
        shim.write_text(_SHIM)
        shim.chmod(0o755)
        [self._forge] = CONTRACTS.glob("node_modules/@foundry-rs/forge-*/bin/forge")
        if self._run("build", patience=3600) != 0:
            raise RuntimeError(f"the tests do not compile: {self._log.read_text()[-2000:]}")
        self._original = self._compiled(self._written)
        self._real: dict[str, Any] = {}
        self._settings = json.loads((CONTRACTS / "sources.json").read_text())["settings"]

    @property
    def _log(self) -> Path:
        return WORK / "forge.log"

    def untouched(self) -> Outcome:
        """Run the tests without a mutant. The expected outcome is "survived"."""
        self._install(self._original)
        return self._tested([])

    def outcome(self, mutant: Mutant, first: list[str]) -> Outcome:
        """Run a mutant. `first`: names of tests to run before all others."""
        path = f"src/{mutant.file}.sol"
        mutated = {**self._written, path: mutant.applied(self._written[path])}
        code = self._compiled(mutated, path)
        if "error" in code:
            return Outcome("invalid")
        if code == {name: self._original[name] for name in code}:
            return Outcome("same")
        self._install({**self._original, **code})
        outcome = self._tested(first)
        if outcome.name == "survived" and self._deploys_the_same(mutated, path):
            return Outcome("same")
        return outcome

    def _compiled(self, written: dict[str, str], path: str = "") -> dict[str, Any]:
        return self._compiler.compiled(relieved(written), self._made_of(path), QUICK)

    def _deploys_the_same(self, mutated: dict[str, str], path: str) -> bool:
        """Return true if the mutant compiles to the same code under the deployment's compiler settings."""
        names = self._made_of(path)
        for name in names:
            if name not in self._real:
                self._real |= self._compiler.compiled(self._written, [name], self._settings)
        code = self._compiler.compiled(mutated, names, self._settings)
        return code == {name: self._real[name] for name in names}

    def _made_of(self, path: str) -> list[str]:
        """Return the contracts that include a source, or all contracts if none includes it."""
        used = json.loads((CONTRACTS / "sources.json").read_text())["contracts"]
        return [name for name in DEPLOYED if not path or path in used[name]]

    def _install(self, code: dict[str, Any]) -> None:
        for name, parts in code.items():
            path = self.folder / "out" / f"{name}.sol" / f"{name}.json"
            artifact = json.loads(path.read_text())
            artifact["bytecode"]["object"], artifact["deployedBytecode"]["object"] = parts["creation"], parts["runtime"]
            path.write_text(json.dumps(artifact))

    def _tested(self, first: list[str]) -> Outcome:
        stages = [["--no-match-contract", f"{_LONG}|GasTest"], ["--match-contract", _LONG]]
        if first:
            stages.insert(0, ["--match-test", f"^({'|'.join(first[:_FIRST])})\\b"])
        for stage in stages:
            for left in ("fuzz", "invariant"):  # failures that forge remembers belong to another mutant
                shutil.rmtree(self.folder / "cache" / left, ignore_errors=True)
            status = self._run("test", "--fail-fast", *stage, patience=PATIENCE)
            if status != 0:
                return Outcome("killed", "(no end)" if status is None else _failed(self._log.read_text()))
        return Outcome("survived")

    def _run(self, *arguments: str, patience: float) -> int | None:
        environment = {**os.environ, **FORGE_SETTINGS, "HOME": str(ROOT / "build" / "foundry")}
        with (
            self._log.open("w") as written,
            subprocess.Popen(
                [str(self._forge), *arguments, "--color", "never"],
                cwd=self.folder,
                env=environment,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as forge,
        ):
            try:
                return forge.wait(patience)
            except subprocess.TimeoutExpired:
                os.killpg(forge.pid, signal.SIGKILL)
                return None


def _failed(log: str) -> str:
    suite = ""
    for line in log.splitlines():
        if begun := re.match(r"Ran \d+ tests? for (\S+)", line):
            suite = begun[1]
        if line.startswith("[FAIL"):
            names = re.findall(r"\b((?:test|invariant|setUp)\w*)", line)
            return f"{suite}:{names[-1] if names else line}"
    raise RuntimeError(f"forge failed, but no test did: {log[-2000:]}")


def _copied(source: Path, target: Path) -> None:
    # Unchanged files keep their modification time, so that forge does not compile them again.
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for inner in source.iterdir():
            _copied(inner, target / inner.name)
        for inner in target.iterdir():
            if not (source / inner.name).exists():
                inner.unlink()
    elif not target.exists() or target.read_bytes() != source.read_bytes():
        shutil.copy(source, target)


def digest(*paths: Path) -> str:
    content = hashlib.sha256()
    for path in sorted(paths):
        content.update(path.name.encode() + b"\0" + path.read_bytes())
    return content.hexdigest()[:16]
