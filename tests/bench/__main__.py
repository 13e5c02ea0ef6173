"""Run every benchmark, and print one table with the history. Writes build/bench.json, adds a line to
build/bench-history.jsonl, and draws the history in build/bench.svg. build/bench.log has the output of the daemons.

    python -m tests.bench [name ...]
    python -m tests.bench --history

Exits with 1 when a figure misses its target twice in a row.
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
    bundles,
    checking,
    churn,
    client,
    events,
    growth,
    http,
    indexing,
    machines,
    market,
    memory,
    polls,
    provider,
    relaying,
    releases,
    replays,
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
from tests.bench.machine import verdict
from tests.bench.row import table
from tests.bench.session import Session
from tests.bench.shared import WORLD

# The only list of the benchmarks. Each module measures in its `rows()`. They run in this order. The last ones share one
# world, so that it is not running idle during the others. The first of these needs a coordinator without earlier work,
# and the next two need one with little.
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
    "replays": replays.rows,
    "starting": starting.rows,
    "uploads": uploads.rows,
    "webhooks": webhooks.rows,
    "memory": memory.rows,
    "answers": answers.rows,
    "waiting": waiting.rows,
    "market": market.rows,
    "bundles": bundles.rows,
    "releases": releases.rows,
}
# These need a separate installation or many minutes, so they run only when named.
ASIDE = {"ponder": beside_ponder.rows, "churn": churn.rows, "machines": machines.rows}
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
        session = Session(terminal)
        for name, rows in known.items():
            if name in names:
                session.measure(name, rows)
    print(table(session.rows))
    keep(this_run(session.rows, time.monotonic() - started, session.how), LATEST, HISTORY)
    runs = runs_of(HISTORY)
    draw(runs, CHART)
    print(f"\n{trend(runs)}\n\nwritten: {LATEST}, {HISTORY}, {CHART}, {LOG}\n{verdict(session.how)}")
    if session.broken:
        print(f"not measured, for an error above: {', '.join(session.broken)}")
    return 0 if all(row.holds for row in session.rows) and not session.broken else 1


if __name__ == "__main__":
    sys.exit(main())
