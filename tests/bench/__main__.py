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
from statistics import mean
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
from tests.bench.machine import Measured, Spent, bare_us, verdict
from tests.bench.row import Row, table

# The one place that knows the benchmarks: each module measures in its `rows()`.
BENCHMARKS = {
    "checking": checking.rows,
    "signing": signing.rows,
    "sealing": sealing.rows,
    "indexing": indexing.rows,
    "memory": memory.rows,
    "relaying": relaying.rows,
    "gas": block_gas.rows,
    "http": http.rows,
    "client": client.rows,
    "serve": serving.rows,
    "provider": provider.rows,
    "answers": answers.rows,
    "market": market.rows,
    "batches": batches.rows,
    "polls": polls.rows,
    "growth": growth.rows,
    "events": events.rows,
    "waiting": waiting.rows,
    "starting": starting.rows,
    "uploads": uploads.rows,
    "releases": releases.rows,
    "webhooks": webhooks.rows,
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
    chosen = arguments.names or list(BENCHMARKS)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    started = time.monotonic()
    with logged(LOG) as terminal:
        rows, how = _measure({name: known[name] for name in chosen}, terminal)
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
    bare = bare_us()
    for name, measure in chosen.items():
        print(f"measuring: {name}", file=terminal, flush=True)
        before, began = Spent.now(), time.monotonic()
        found = measure()
        seconds, after, bare_before, bare = time.monotonic() - began, Spent.now(), bare, bare_us()
        how.append(Measured.between(name, seconds, mean((bare_before, bare)), before, after))
        held = how[-1].held(found)
        print(f"measured: {how[-1]}\n{table(held)}", file=terminal, flush=True)
        rows += held
    return rows, how


if __name__ == "__main__":
    sys.exit(main())
