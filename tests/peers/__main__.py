"""Run independent programs against the project, each in a separate environment, and print a table.

    python -m tests.peers [NAME ...] [list]

Without names, all peers run one after another. A peer that this machine lacks is reported as missing. With a name, a
missing peer is a failure. Logs are in build/peers.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final

import attrs

from tests.peers.known import peers
from tests.peers.peer import Peer
from tests.support.requirements import made, npm, require

LIST: Final = "list"
_NPM: Final = ("peers/postgres", "peers/strangers/openai", "peers/node")
_HEADS: Final = ("peer", "version", "held", "result", "seconds")


@attrs.frozen
class Row:
    peer: str
    version: str
    held: str
    result: str
    seconds: str = "-"

    @property
    def wrong(self) -> bool:
        return self.result == "WRONG"


def asked(peer: Peer, *, named: bool) -> Row:
    if (reason := peer.why_not()) is not None:
        return Row(peer.name, "-", reason, "WRONG" if named else "not tried")
    began = time.monotonic()
    version, verdict = peer.version(), peer.run()
    seconds = f"{time.monotonic() - began:.0f}"
    return Row(peer.name, version, verdict.held, "right" if verdict.right else "WRONG", seconds)


def table(rows: Sequence[Row]) -> str:
    lines = [_HEADS, *(attrs.astuple(row) for row in rows)]
    # The last column is the longest, so only the others are padded.
    ordered = [(peer, version, result, seconds, held) for peer, version, held, result, seconds in lines]
    widths = [max(len(line[column]) for line in ordered) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4]])
        for line in ordered
    )


def main() -> int:
    known = {peer.name: peer for peer in peers()}
    parser = argparse.ArgumentParser(prog="python -m tests.peers")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(known)}; `{LIST}` tells what each is")
    names = parser.parse_args().names
    if LIST in names:
        for peer in known.values():
            print(f"{peer.name:24} {peer.what}")
        return 0
    if unknown := set(names) - known.keys():
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    require(".venv-peers/.ready", *npm(*_NPM))
    if not made("programs"):
        print("peers: those that need it are not tried", file=sys.stderr)
    rows = []
    for peer in [known[name] for name in names] or known.values():
        print(f"{peer.name}: {peer.what} …", flush=True)
        rows.append(asked(peer, named=bool(names)))
        print(f"    {rows[-1].result}: {rows[-1].held}", flush=True)
    print(f"\n{table(rows)}")
    return 1 if any(row.wrong for row in rows) or all(row.result == "not tried" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
