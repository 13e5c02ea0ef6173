"""Runs every benchmark, prints one table and writes build/bench.json.

    python -m tests.bench [--report file] [name ...]

Exits with 1 when a figure misses its target.
"""

import argparse
import json
import sys
from pathlib import Path

import attrs

from tests.bench import (
    batches,
    beside_ponder,
    checking,
    client,
    http,
    indexing,
    memory,
    polls,
    provider,
    relaying,
    releases,
    sealing,
    signing,
    uploads,
)
from tests.bench.row import Row

# The one place that knows the benchmarks: each module measures in its `rows()`.
BENCHMARKS = {
    "checking": checking.rows,
    "signing": signing.rows,
    "sealing": sealing.rows,
    "indexing": indexing.rows,
    "memory": memory.rows,
    "relaying": relaying.rows,
    "http": http.rows,
    "client": client.rows,
    "provider": provider.rows,
    "batches": batches.rows,
    "polls": polls.rows,
    "uploads": uploads.rows,
    "releases": releases.rows,
}
# These need an installation of their own: run when named.
ASIDE = {"ponder": beside_ponder.rows}
REPORT = Path("build/bench.json")


def table(rows: list[Row]) -> str:
    lines = [("what", "value", "unit", "× against", "target", "", "against")]
    lines += [
        (
            row.name,
            f"{row.value:,.0f}",
            row.unit,
            f"{row.ratio:.2f}",
            f"{row.target:g}",
            "holds" if row.holds else "MISSED",
            row.against,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    numbers = {1, 3, 4}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    known = BENCHMARKS | ASIDE
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of: {', '.join(known)}")
    parser.add_argument(
        "--report", type=Path, default=REPORT, help="where the figures go as JSON (default: %(default)s)"
    )
    arguments = parser.parse_args()
    chosen = arguments.names or list(BENCHMARKS)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    rows: list[Row] = []
    for name in chosen:
        print(f"measuring: {name}", file=sys.stderr)
        rows += known[name]()
    print(table(rows))
    arguments.report.parent.mkdir(exist_ok=True)
    arguments.report.write_text(json.dumps([attrs.asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
