"""Webhooks: messages a second from the event log to a receiver on this machine, by one process.

Ten endpoints of ten owners subscribe to all events. The time includes fan-out, signing, posting on kept connections and
recording. The receiver answers at once in the same process, and uses about half of the measured time.
`WEBHOOK_MESSAGES` makes the run smaller.
"""

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import harmonic_mean
from typing import Final

import anyio
from aiohttp import web

from common.daemon.secrets import Secret
from coordinatord.api.webhooks.delivery import run_deliveries
from coordinatord.api.webhooks.endpoints import SealedSecrets, WebhookBody, WebhookEndpoints
from coordinatord.storage.database.connections import Database, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.notices import INDEX_MOVED, Notices
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.row import Row, parts
from tests.fakes.funded import FUNDED

MESSAGES: Final = int(os.environ.get("WEBHOOK_MESSAGES", "5000"))
PARTS: Final = 5  # of the messages, as they are delivered
OWNERS: Final = 10
LEAST: Final = 100.0  # messages a second: 33 jobs a second with three messages each
_KEY: Final = Secret("11" * 32)


async def _answer(_: web.BaseRequest) -> web.Response:
    return web.Response(status=204)


async def _delivered(url: str) -> list[float]:
    """Messages a second, of each part of them."""
    async with open_database(url, smallest=2, largest=16) as database:
        async with database.unhurried() as connection:
            await migrate(connection)
        runner = web.ServerRunner(web.Server(_answer, access_log=None))  # type: ignore[arg-type] # its handler is typed for whole applications
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hook = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        endpoints = WebhookEndpoints(database, SealedSecrets([_KEY]), FUNDED, private=True)
        for n in range(OWNERS):
            await endpoints.add(n.to_bytes(20, "big"), WebhookBody(url=hook))
        try:
            return await _rates(database)
        finally:
            await runner.cleanup()


async def _rates(database: Database) -> list[float]:
    notices = Notices()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notices.listen, database)
        tasks.start_soon(partial(run_deliveries, database, notices, [_KEY], private=True))
        await _append(database, OWNERS)  # so that each has answered once
        await _until(database, OWNERS)
        began, done, rates = time.monotonic(), OWNERS, []
        await _append(database, MESSAGES)
        for part in parts(range(MESSAGES), PARTS):
            sent, done = done, await _until(database, OWNERS + part[-1] + 1)
            ended = time.monotonic()
            rates.append((done - sent) / (ended - began))
            began = ended
        tasks.cancel_scope.cancel()
    return rates


async def _append(database: Database, many: int) -> None:
    async with database.connection() as connection, connection.transaction():
        await connection.execute(
            "insert into events (kind, block_number, block_time, job_id, owner, model_id, provider_id, designated,"
            " state, ended_because) select 2, 1, 1800000000, decode(lpad(to_hex(n), 64, '0'), 'hex'),"
            " decode(lpad(to_hex(n % $2), 40, '0'), 'hex'), 1, 2, 2, 2, 1 from generate_series(1, $1::integer) n",
            many,
            OWNERS,
        )
        await connection.execute("select pg_notify($1, '1')", INDEX_MOVED)


async def _until(database: Database, delivered: int) -> int:
    """As many as are delivered once these are."""
    with anyio.fail_after(300):
        while True:
            async with database.connection() as connection:
                found = int(await connection.fetchval("select sum(delivered) from webhooks"))
                if found >= delivered:
                    return found
            await anyio.sleep(0.05)


async def _measured() -> list[float]:
    with tempfile.TemporaryDirectory() as directory:
        folders = [Path(directory) / name for name in ("pg", "logs")]
        for folder in folders:
            folder.mkdir()
        async with running_postgres(pick_free(), *folders) as postgres:
            return await _delivered(postgres.url())


def rows() -> list[Row]:
    rates = anyio.run(_measured)
    what = f"webhooks delivered, {MESSAGES:,} to {OWNERS} endpoints"
    return [Row.of(what, rates, "/s", f"{LEAST:g}/s", LEAST, target=1, absolute="clock", by=harmonic_mean)]
