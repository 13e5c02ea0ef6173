"""Resources that a run uses at rest: memory and descriptors of each process, rows and bytes of each table. Growth
without a reason fails the run.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import asyncpg
import attrs

from tests.soak.ground import Ground

# Why a table or process may grow during a run. All others must have reached their size in the first round.
GROWS: Final = {
    "jobs": "the market's history is kept for ever",
    "job_counts": "sums over jobs",
    "owner_sums": "one row per owner of a job",
    "job_ends": "kept for a year",
    "events": "kept for a day",
    "relays": "kept for three days here",
    "relay_txs": "kept for three days here",
    "relay_tx_versions": "kept for three days here",
    "relay_formers": "kept with its relay",
    "gas_bookings": "kept for three days here",
    "batches": "kept for three days here",
    "batch_lines": "kept for three days here",
    "objects": "kept for three days here",
    "files": "kept for three days here",
    "pinned_keys": "kept with its object or file",
    "stored": "one row per owner of a kept file or object",
    "sessions": "kept for up to a day",
    "provider_models": "the operator allows a model for one provider",
    "providers": "the upkeep attack registers a provider per round",
    "asks": "the upkeep attack publishes 64 asks per round",
    "ask_times": "one row per provider",
    "reliability": "one row per provider and model",
    "anvil": "the node keeps the transactions of the last blocks",
}
_ROWS_FREE: Final = 500  # rows by which any table may grow
_DESCRIPTORS_FREE: Final = 40  # pools open and close connections
_MEMORY_FREE_MIB: Final = 48.0
_SHARED_BUFFERS_MIB: Final = 192.0  # of PostgreSQL, which fills with pages that were read
_TABLES: Final = (
    "select relname as name, pg_total_relation_size(oid) as bytes from pg_class where relkind in ('r', 'p')"
    " and relnamespace = 'public'::regnamespace order by relname"
)
_PAGE_MIB: Final = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@attrs.frozen
class ProcessUse:
    """Use by a process and its children. A small `age_s` shows that the process was restarted."""

    memory_mib: float
    descriptors: int
    age_s: float


@attrs.frozen
class TableSize:
    rows: int
    bytes: int


@attrs.frozen
class Look:
    """Resources at one time, `at` seconds into the run."""

    at: float
    processes: dict[str, ProcessUse]
    tables: dict[str, TableSize]
    stored_mib: float  # files of the pin store

    def as_json(self) -> dict[str, Any]:
        return attrs.asdict(self)


async def look(ground: Ground, at: float) -> Look:
    connection = await asyncpg.connect(ground.database_url)
    try:
        tables = {}
        for row in await connection.fetch(_TABLES):
            rows = await connection.fetchval(f'select count(*) from "{row["name"]}"')  # noqa: S608 - from the catalogue
            tables[row["name"]] = TableSize(rows, row["bytes"])
    finally:
        await connection.close()
    uses = {name: use for name, pid in pids(ground).items() if (use := use_of(pid)) is not None}
    return Look(at, uses, tables, _stored_mib(ground))


def pids(ground: Ground) -> dict[str, int]:
    known = {daemon.name: daemon.pid for daemon in ground.daemons}
    known |= {"postgres": ground.postgres.pid, "pin store": ground.pins.pid}
    known |= {"anvil": ground.anvil.child.pid, "soak": os.getpid()}
    return {name: pid for name, pid in known.items() if pid is not None}


def use_of(pid: int) -> ProcessUse | None:
    """Return the use of a process and its children, or None if it has ended. The children of the soak are reported
    under their own names."""
    family = [pid] if pid == os.getpid() else list(_family(pid))
    memory, descriptors = 0.0, 0
    for member in family:
        with suppress(OSError, ValueError):
            # Pages that PostgreSQL's processes share count once, in proportion.
            memory += _proportional_mib(member) if len(family) > 1 else _resident_mib(member)
            descriptors += len(os.listdir(f"/proc/{member}/fd"))
    with suppress(OSError):
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
        return ProcessUse(memory, descriptors, age)
    return None


def growth(looks: Sequence[Look]) -> list[str]:
    """Compare the last look with the one after the first round. Both are taken at rest. The first look of all is from
    before the load."""
    if len(looks) < 3:
        return []
    base, last = looks[1], looks[-1]
    return [*_grown_processes(base, last), *_grown_tables(base.tables, last.tables)]


def _grown_processes(base: Look, last: Look) -> Iterator[str]:
    for name, use in last.processes.items():
        before = base.processes.get(name)
        if before is None or name in GROWS:
            continue
        free = _SHARED_BUFFERS_MIB if name == "postgres" else _MEMORY_FREE_MIB
        if use.memory_mib > before.memory_mib * 1.25 + free:
            yield f"growth: {name} has {use.memory_mib:.0f} MiB, and {before.memory_mib:.0f} after the first round"
        # Each connection of PostgreSQL keeps the files of many tables open.
        if name != "postgres" and use.descriptors > before.descriptors + _DESCRIPTORS_FREE:
            yield f"growth: {name} has {use.descriptors} descriptors, and {before.descriptors} after the first round"


def _grown_tables(base: Mapping[str, TableSize], last: Mapping[str, TableSize]) -> Iterator[str]:
    for name, size in last.items():
        before = base[name].rows if name in base else 0
        if name not in GROWS and size.rows > 1.25 * before + _ROWS_FREE:
            yield f"growth: table {name} has {size.rows} rows, and {before} after the first round"


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from _family(int(child))


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MIB


def _proportional_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _stored_mib(ground: Ground) -> float:
    total = 0
    for folder, _, files in os.walk(ground.pin_folder):
        for name in files:
            with suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total / (1 << 20)
