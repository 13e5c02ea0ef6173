"""Journal of a deployment. Each signed transaction is written to disk before it is broadcast.

After a killed run, the file lists the transactions that may be on the chain. The next run reads their receipts,
rebroadcasts the bytes of transactions without a receipt, and signs nothing twice. The file contains no key.
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
    """Signed transaction of a step. A replaced attempt stays in `DeploymentEntry.attempts`, because a replaced
    attempt may still be mined."""

    hash: str
    raw: str = attrs.field(repr=False)
    gas: int
    max_fee: int  # in wei, like the tip
    tip: int


@attrs.frozen(slots=True)
class DeploymentEntry:
    """Step with a signed transaction. `block` is None until the step is confirmed."""

    nonce: int
    attempts: tuple[Attempt, ...]
    address: str | None = None  # of the created contract
    block: int | None = None
    mined: str | None = None  # hash of the attempt that was mined


@attrs.define(slots=True)
class DeploymentJournal:
    """Entries by step. If `path` is None, nothing is written to disk and the deployment cannot be resumed."""

    path: Path | None
    identity: Mapping[str, Any]  # `MarketDeployment.identity`; a resumed run must have the same
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
            "run": self.identity,
            "steps": {key: attrs.asdict(entry) for key, entry in self.entries.items()},
        }
        replace_file(self.path, json.dumps(document, indent=2) + "\n")

    def last_nonce(self) -> int:
        return max((entry.nonce for entry in self.entries.values()), default=-1)


@contextmanager
def open_journal(path: Path, identity: Mapping[str, Any]) -> Iterator[DeploymentJournal]:
    """Open or create the journal of this deployment. Raise Fatal when the file belongs to another deployment or is in
    use."""
    try:
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Fatal(f"the journal {path} cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fatal(f"another run is using {path}: wait for it, or stop it") from None
        identity = json.loads(json.dumps(identity))  # converted to JSON types, to be comparable with the file
        yield _read_journal(path, identity) if path.exists() else DeploymentJournal(path, identity)
    finally:
        os.close(lock)


def _read_journal(path: Path, identity: Mapping[str, Any]) -> DeploymentJournal:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != _VERSION:
            raise Fatal(
                f"{path} is a journal of version {document['version']}; this release reads version {_VERSION}: "
                "use the release that wrote the journal"
            )
        before = document["run"]
        entries = {key: _parse_entry(entry) for key, entry in document["steps"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Fatal(f"{path} is not a journal of a deployment: {error}") from None
    different = _first_difference(before, identity)
    if different is not None:
        name, was, now = different
        raise Fatal(
            f"{path} is the journal of a deployment whose {name} was {was}; now it is {now}. Resume the deployment "
            f"with the old {name} and change the market afterwards (`coordinatord market admin`), or deploy another "
            "market with another --out"
        )
    return DeploymentJournal(path, identity, entries)


def _parse_entry(document: Mapping[str, Any]) -> DeploymentEntry:
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
    """Replace a file atomically. After a crash, the file has either the old content or the new content."""
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
