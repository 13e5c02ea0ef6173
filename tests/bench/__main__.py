"""Runs every benchmark, prints one table and its history, and leaves in build/: bench.json, a line more in
bench-history.jsonl, and bench.svg with all of them.

    python -m tests.bench [name ...]
    python -m tests.bench --history

Exits with 1 when a figure misses its target.
"""

import argparse
import sys
import time
from pathlib import Path

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
LATEST, HISTORY, CHART = (Path("build") / name for name in ("bench.json", "bench-history.jsonl", "bench.svg"))


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
    rows: list[Row] = []
    started = time.monotonic()
    for name in chosen:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        found = known[name]()
        print(f"measured: {name}, {time.monotonic() - began:.0f} s\n{table(found)}", file=sys.stderr, flush=True)
        rows += found
    print(table(rows))
    keep(this_run(rows, time.monotonic() - started), LATEST, HISTORY)
    runs = runs_of(HISTORY)
    draw(runs, CHART)
    print(f"\n{trend(runs)}\n\nwritten: {LATEST}, {HISTORY}, {CHART}")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
