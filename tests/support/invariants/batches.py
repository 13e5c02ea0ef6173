"""I6: a batch's output lines and error lines together are exactly its input lines, with one record per line. This holds
after any kill."""

import json
from collections import Counter
from datetime import datetime

from coordinatord.api.files.files_sql import object_key
from coordinatord.api.files.inspection import BLANK_BYTES
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.pins.store import PinStore
from tests.support.invariants.objects import LONG_AGO


async def broken_batches(database: Database, pins: PinStore, since: datetime = LONG_AGO) -> list[str]:
    """Return each violation among ended batches that were created since this time as a sentence. Reads whole files, so
    files must be small (a few megabytes)."""
    found: list[str] = []
    async with database.connection() as connection:
        batches = await connection.fetch(
            "select id, input_file_id, output_file_id, error_file_id, total, completed, failed from batches"
            " where coalesce(completed_at, expired_at, cancelled_at) is not null and created_at >= $1",
            since,
        )
        for batch in batches:
            found += [f"I6: {batch['id']}: {wrong}" for wrong in await _broken(connection, pins, dict(batch))]
        doubled = await connection.fetch(
            "select batch_id, job_id from batch_lines where relay_id is not null"
            " group by batch_id, job_id having count(*) > 1"
        )
    return found + [f"I6: {row['batch_id']} posted job {row['job_id'].hex()} twice" for row in doubled]


async def _broken(connection: Connection, pins: PinStore, batch: "dict[str, object]") -> list[str]:
    text = await pins.get(object_key(str(batch["input_file_id"])))
    wanted = {number for number, line in enumerate(text.split(b"\n"), 1) if line.strip(BLANK_BYTES)}
    output = await _numbers(pins, batch["output_file_id"])
    errors = await _numbers(pins, batch["error_file_id"])
    rows = await connection.fetch("select line from batch_lines where batch_id = $1", batch["id"])
    found = []
    if {row["line"] for row in rows} != wanted or len(rows) != len(wanted):
        found.append(f"{len(rows)} records for {len(wanted)} lines")
    if Counter(output + errors) != Counter(wanted):
        found.append(f"{len(output)} output and {len(errors)} error lines for {len(wanted)} lines")
    if output != sorted(output) or errors != sorted(errors):
        found.append("a file is not in the order of the input")
    if (batch["total"], batch["completed"], batch["failed"]) != (len(wanted), len(output), len(errors)):
        found.append("the counts are not those of the files")
    return found


async def _numbers(pins: PinStore, file_id: object) -> list[int]:
    if file_id is None:
        return []
    content = await pins.get(object_key(str(file_id)))
    return [int(json.loads(line)["id"].rpartition("_")[2]) for line in content.splitlines()]
