"""Runs every benchmark, prints one table and its history, and leaves in build/: bench.json, a line more in
bench-history.jsonl, bench.svg with all of them, and bench.log with what the daemons said meanwhile.

    python -m tests.bench [name ...]
    python -m tests.bench --history

Exits with 1 when a figure misses its target.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tests.bench import (
    answers,
    batches,
    beside_ponder,
    block_gas,
    checking,
    churn,
    client,
    events,
    growth,
    http,
    indexing,
    market,
    memory,
    polls,
    provider,
    relaying,
    releases,
    sealing,
    serving,
    signing,
    starting,
    uploads,
    waiting,
    webhooks,
)
from tests.bench.chart import draw
from tests.bench.history import keep, runs_of, this_run, trend
from tests.bench.logs import logged
from tests.bench.machine import Bare, Measured, Spent, verdict
from tests.bench.row import Row, table
from tests.bench.shared import WORLD

# The one place that knows the benchmarks: each module measures in its `rows()`. They run in this order. Those at the
# end share one world, so that it stands idle beside none of the others; the first of them wants a coordinator that has
# had nothing to do, and the next two one that has had little.
BENCHMARKS = {
    "checking": checking.rows,
    "signing": signing.rows,
    "sealing": sealing.rows,
    "indexing": indexing.rows,
    "relaying": relaying.rows,
    "gas": block_gas.rows,
    "http": http.rows,
    "client": client.rows,
    "serve": serving.rows,
    "provider": provider.rows,
    "batches": batches.rows,
    "polls": polls.rows,
    "growth": growth.rows,
    "events": events.rows,
    "starting": starting.rows,
    "uploads": uploads.rows,
    "webhooks": webhooks.rows,
    "memory": memory.rows,
    "answers": answers.rows,
    "waiting": waiting.rows,
    "market": market.rows,
    "releases": releases.rows,
}
# These need an installation of their own, or many minutes: run when named.
ASIDE = {"ponder": beside_ponder.rows, "churn": churn.rows}
LATEST, HISTORY, CHART, LOG = (
    Path("build") / name for name in ("bench.json", "bench-history.jsonl", "bench.svg", "bench.log")
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    known = BENCHMARKS | ASIDE
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of: {', '.join(known)}")
    parser.add_argument("--history", action="store_true", help="measure nothing: show what was measured")
    arguments = parser.parse_args()
    if arguments.history:
        print(trend(runs_of(HISTORY)))
        return 0
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    names = arguments.names or BENCHMARKS
    started = time.monotonic()
    with logged(LOG) as terminal, WORLD.kept():
        rows, how = _measure({name: rows for name, rows in known.items() if name in names}, terminal)
    print(table(rows))
    keep(this_run(rows, time.monotonic() - started, how), LATEST, HISTORY)
    runs = runs_of(HISTORY)
    draw(runs, CHART)
    print(f"\n{trend(runs)}\n\nwritten: {LATEST}, {HISTORY}, {CHART}, {LOG}\n{verdict(how)}")
    return 0 if all(row.holds for row in rows) else 1


def _measure(chosen: dict[str, Callable[[], list[Row]]], terminal: TextIO) -> tuple[list[Row], list[Measured]]:
    """The rows of each, told as they are measured, and how the machine was meanwhile."""
    rows: list[Row] = []
    how: list[Measured] = []
    bare = Bare.now()
    for name, measure in chosen.items():
        print(f"measuring: {name}", file=terminal, flush=True)
        before, began = Spent.now(), time.monotonic()
        found = measure()
        seconds, after = time.monotonic() - began, Spent.now()
        earlier, bare = bare, Bare.now()
        how.append(Measured.between(name, seconds, earlier.and_then(bare), before, after))
        held = [how[-1].bare.held(row) for row in found]
        print(f"measured: {how[-1]}\n{table(held)}", file=terminal, flush=True)
        rows += held
    return rows, how


if __name__ == "__main__":
    sys.exit(main())
