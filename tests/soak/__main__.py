"""`make soak`: see --help. Exits with 1 when an invariant is broken."""

import sys
import time
from functools import partial

import anyio

from tests.soak.options import read_options
from tests.soak.run import soak


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> None:
    options = read_options(sys.argv[1:])
    summary = anyio.run(partial(soak, options, say))
    broken = [one["detail"] for one in summary["invariants"].values() if not one["holds"]]
    print(f"faults: {summary['faults']}\nclients: {summary['outcomes']}")
    print("at risk:\n" + "\n".join(f"  {risk}" for risk in summary["risks"]))
    print(f"{summary['jobs']} jobs; report: {options.out / 'soak.html'}, {options.out / 'soak.json'}")
    for detail in broken:
        print(f"BROKEN {detail}")
    if broken:
        print(f"repeat: {options.again}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
