"""An upload in a separate process that tests can kill midway: `python -m tests.support.faults.upload_process`.

Reads DATABASE_URL and the PIN_STORE_* variables from the environment, as the coordinator does. It sends ten MiB and
then waits forever for more.
"""

import os
import sys
from collections.abc import AsyncIterator

import anyio
import anyio.abc

from common.daemon.secrets import Secret
from coordinatord.api.files.files import FileStore
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.pins.store import open_pin_store
from devnet.pins import PinStoreService


async def upload_process(database_url: str, pins: PinStoreService) -> anyio.abc.Process:
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "PIN_STORE_ENDPOINT": pins.endpoint,
        "PIN_STORE_BUCKET": pins.bucket,
        "PIN_STORE_KEY": pins.key,
        "PIN_STORE_SECRET": pins.secret,
    }
    command = [sys.executable, "-m", "tests.support.faults.upload_process"]
    return await anyio.open_process(command, env=environment, stdout=None, stderr=None)


async def _endless() -> AsyncIterator[bytes]:
    for _ in range(10):
        yield bytes(1 << 20)
    await anyio.sleep_forever()


async def _main() -> None:
    endpoint, bucket, key, secret = (
        os.environ[f"PIN_STORE_{name}"] for name in ("ENDPOINT", "BUCKET", "KEY", "SECRET")
    )
    async with (
        open_database(os.environ["DATABASE_URL"], max_size=2) as database,
        open_pin_store(endpoint, bucket, Secret(key), Secret(secret), "us-east-1") as pins,
    ):
        await FileStore(database, pins, 2_592_000).upload(b"\x01" * 20, "result", "endless", _endless())


if __name__ == "__main__":
    anyio.run(_main)
