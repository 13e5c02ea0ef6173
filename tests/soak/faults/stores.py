"""Faults of the pin store and of the database connection: slow, refused, cut, killed, restarted."""

from random import Random

import anyio

from tests.soak.ground import Ground
from tests.support.faults.tcp_proxy import Trouble


async def store_trouble(ground: Ground, random: Random, seconds: float) -> None:
    with ground.store.trouble(random.choice([trouble for trouble in Trouble if trouble is not Trouble.WRONG_CID])):
        await anyio.sleep(seconds)


async def wrong_cid(ground: Ground, _random: Random, seconds: float) -> None:
    """The store answers uploads with the content id of other content."""
    with ground.store.trouble(Trouble.WRONG_CID):
        await anyio.sleep(seconds)


async def store_killed(ground: Ground, _random: Random, seconds: float) -> None:
    await ground.pins.kill()
    await anyio.sleep(seconds)
    await ground.pins.start()
    await ground.pins.until_ready()


async def database_cut(ground: Ground, _random: Random, seconds: float) -> None:
    """Cut every connection at once. The server keeps running."""
    with ground.database.trouble(Trouble.REFUSE):
        await anyio.sleep(seconds)


async def database_restart(ground: Ground, _random: Random, seconds: float) -> None:
    await ground.postgres.stop()
    await anyio.sleep(seconds)
    await ground.postgres.start()
    await ground.postgres.until_ready()
