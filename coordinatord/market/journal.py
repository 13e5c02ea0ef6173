"""The journal of a deployment: each signed transaction is on disk before it is broadcast.

After a killed run, the file lists the transactions that may be on the chain. The next run reads their receipts,
rebroadcasts the same bytes of those without a receipt, and signs nothing twice. The file contains no key.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from common.daemon.process import Fatal

_VERSION: Final = 1


@attrs.frozen(slots=True)
class Attempt:
    """One signing of a step. A replaced attempt stays in the list, because either may be mined."""

    hash: str
    raw: str = attrs.field(repr=False)
    gas: int
    max_fee: int  # in wei, like the tip
    tip: int


@attrs.frozen(slots=True)
class DeploymentEntry:
    """Signed step. `block` is None until the step is confirmed."""

    nonce: int
    attempts: tuple[Attempt, ...]
    address: str | None = None  # of the created contract
    block: int | None = None
    mined: str | None = None  # hash of the attempt that was mined


@attrs.define(slots=True)
class DeploymentJournal:
    """Entries by step. `path` is None for a deployment that cannot be resumed, such as on a local chain."""

    path: Path | None
    run: Mapping[str, Any]  # identity of the deployment; only a run with the same identity may resume it
    entries: dict[str, DeploymentEntry] = attrs.field(factory=dict)

    def write(self, key: str, entry: DeploymentEntry | None) -> None:
        """Write the entry to disk before returning. With None, remove a step that can never be mined."""
        if entry is None:
            del self.entries[key]
        else:
            self.entries[key] = entry
        if self.path is None:
            return
        document = {
            "version": _VERSION,
            "run": self.run,
            "steps": {key: attrs.asdict(entry) for key, entry in self.entries.items()},
        }
        replace_file(self.path, json.dumps(document, indent=2) + "\n")

    def last_nonce(self) -> int:
        return max((entry.nonce for entry in self.entries.values()), default=-1)


@contextmanager
def opened(path: Path, run: Mapping[str, Any]) -> Iterator[DeploymentJournal]:
    """Open or create the journal of this deployment. Raise Fatal when it belongs to another one or is in use."""
    try:
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Fatal(f"the journal {path} cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fatal(f"another run is at work on {path}: let it end, or end it") from None
        run = json.loads(json.dumps(run))  # with JSON's types, like the file's
        yield _read(path, run) if path.exists() else DeploymentJournal(path, run)
    finally:
        os.close(lock)


def _read(path: Path, run: Mapping[str, Any]) -> DeploymentJournal:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != _VERSION:
            raise Fatal(f"{path} is a journal of version {document['version']}; this release reads {_VERSION}")
        before = document["run"]
        entries = {key: _entry(entry) for key, entry in document["steps"].items()}
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        raise Fatal(f"{path} is no journal of a deployment: {wrong}") from None
    different = _first_difference(before, run)
    if different is not None:
        name, was, now = different
        raise Fatal(
            f"{path} is the journal of a deployment whose {name} was {was}; now it is {now}. Run it with the values it "
            "began with and change them afterwards (`coordinatord market admin`), or deploy anew with another --out"
        )
    return DeploymentJournal(path, run, entries)


def _entry(document: Mapping[str, Any]) -> DeploymentEntry:
    return DeploymentEntry(
        **(dict(document) | {"attempts": tuple(Attempt(**attempt) for attempt in document["attempts"])})
    )


def _first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, object, object] | None:
    for name in {**before, **now}:
        was, is_now = before.get(name), now.get(name)
        if isinstance(was, dict) and isinstance(is_now, dict):
            inner = _first_difference(was, is_now)
            if inner is not None:
                return inner
        elif was != is_now:
            return name, was, is_now
    return None


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: after a crash it has its old content or the new one."""
    draft = path.with_name(path.name + ".draft")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise Fatal(f"{path} cannot be written: {error.strerror}") from None
