"""Fuzz targets: readers of untrusted bytes, each with an oracle that checks the results."""

import atexit
import base64
import importlib
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from common.refusal import Refused

T = TypeVar("T")

CORPUS: Final = Path(__file__).with_name("corpus")
LONGEST: Final = 4096
SLOWEST: Final = 2.0  # CPU seconds for one input; the slowest committed input takes a hundredth of this


@attrs.frozen(eq=False)
class Target:
    """`check` raises if an input breaks a promise of its reader. Rejecting the input is fine. `words` are names and
    marks of the format that mutations can insert, because chance alone would not find them."""

    name: str
    check: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]] = tuple
    words: tuple[bytes, ...] = ()
    longest: int = LONGEST

    def replay(self, data: bytes) -> None:
        """Run `check` within the time limit."""
        began = time.process_time()
        self.check(data)
        took = time.process_time() - began
        assert took < SLOWEST, f"{self.name} took {took:.1f} s for {len(data)} bytes"

    @property
    def kept(self) -> Path:
        return CORPUS / f"{self.name}.b64"

    def corpus(self) -> Iterator[bytes]:
        if self.kept.exists():
            yield from (base64.b64decode(line) for line in self.kept.read_text(encoding="ascii").splitlines())

    def keep(self, inputs: Iterable[bytes]) -> None:
        """Write one input per line, so that diffs show additions and removals."""
        lines = sorted({base64.b64encode(data).decode() for data in inputs}, key=lambda line: (len(line), line))
        self.kept.write_text("".join(line + "\n" for line in lines), encoding="ascii")


def refused(read: Callable[[], T], *kinds: type[Exception]) -> T | None:
    """Return the value, or None if its reader refused it with `Refused` or one of `kinds`."""
    try:
        return read()
    except (Refused, *kinds):
        return None


def own_folder() -> Path:
    """Return a folder for files that readers open by name. It is removed when the process exits."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def cut(data: bytes) -> list[bytes]:
    """Split the input at lengths encoded in the input, so that mutations also move the splits."""
    pieces, at, step = [], 0, sum(data[:3])
    while at < len(data):
        step = (step * 31 + data[at]) % 61
        pieces.append(data[at : at + 1 + step])
        at += 1 + step
    return pieces


def driven(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "sealed": ("frames", "container", "plaintexts", "handover", "tab-messages", "tab-channel"),
    "texts": ("json", "scalars", "address-book", "json-path", "cid"),
    "chain_data": ("abi", "logs", "rlp", "receipt", "block"),
    "bodies": ("bodies", "answers", "batch-lines", "bundles"),
    "http": ("requests", "forms"),
    "model_servers": ("streams", "loads", "openai-requests"),
}
NAMES: Final = tuple(name for names in FAMILIES.values() for name in names)


def target_of(name: str) -> Target:
    """Raise KeyError for an unknown name."""
    for family, names in FAMILIES.items():
        if name in names:
            targets = importlib.import_module(f"tests.fuzz.{family}").TARGETS
            return {target.name: target for target in targets}[name]
    raise KeyError(name)
