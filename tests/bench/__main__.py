"""Measure every figure that has a floor, and print one table with the history. Writes build/bench.json, adds a line to
build/bench-history.jsonl, and draws the history in build/bench.svg. build/bench.log has the output of the daemons.

    python -m tests.bench [name ...]
    python -m tests.bench --history

Exits with 1 when a figure misses its floor. A figure that misses narrowly on a busy machine shows wide quartiles.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.bench import checking, growth, http, indexing, machines, market, provider, relaying, sealing
from tests.bench.chart import draw
from tests.bench.history import keep, runs_of, this_run, trend
from tests.bench.logs import logged
from tests.bench.row import Row, table

# The only list of the benchmarks, in the order of their runs. Each module measures in its `rows()`.
BENCHMARKS: Final[dict[str, Callable[[], list[Row]]]] = {
    "http": http.rows,
    "checking": checking.rows,
    "relaying": relaying.rows,
    "market": market.rows,
    "indexing": indexing.rows,
    "sealing": sealing.rows,
    "provider": provider.rows,
    "growth": growth.rows,
}
# Many minutes, and no floor: runs only when named.
ASIDE: Final[dict[str, Callable[[], list[Row]]]] = {"machines": machines.rows}
LATEST, HISTORY, CHART, LOG = (
    Path("build") / name for name in ("bench.json", "bench-history.jsonl", "bench.svg", "bench.log")
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    known = BENCHMARKS | ASIDE
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of: {', '.join(known)}")
    parser.add_argument("--history", action="store_true", help="show earlier results without measuring")
    arguments = parser.parse_args()
    if arguments.history:
        print(trend(runs_of(HISTORY)))
        return 0
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    names, started = arguments.names or list(BENCHMARKS), time.monotonic()
    rows: list[Row] = []
    failed: list[str] = []
    with logged(LOG) as terminal:
        for name in names:
            began = time.monotonic()
            try:
                rows += known[name]()
            except Exception:
                failed.append(name)
                terminal.write(traceback.format_exc())
            terminal.write(f"{name}: {time.monotonic() - began:.0f} s\n")
            terminal.flush()
    print(table(rows))
    keep(this_run(rows, time.monotonic() - started), LATEST, HISTORY)
    runs = runs_of(HISTORY)
    draw(runs, CHART)
    print(f"\n{trend(runs)}\n\nwritten: {LATEST}, {HISTORY}, {CHART}, {LOG}")
    if failed:
        print(f"not measured, for an error above: {', '.join(failed)}")
    return 0 if all(row.holds for row in rows) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
