"""Daemons end: without warning, or as their operator asks."""

from random import Random
from typing import Final

import anyio

from tests.soak.daemon import Daemon
from tests.soak.ground import Ground
from tests.soak.shifted_clock import write_shift

_CLOCK_OFF: Final = 900.0  # seconds at most


class UncleanExit(Exception):
    """A daemon that was asked to end did so with a status other than 0."""


async def coordinator_killed(ground: Ground, random: Random, seconds: float) -> None:
    await _killed(random.choice(ground.coordinators), seconds)


async def coordinator_restarted(ground: Ground, random: Random, seconds: float) -> None:
    await _restarted(random.choice(ground.coordinators), seconds)


async def provider_killed(ground: Ground, random: Random, seconds: float) -> None:
    await _killed(random.choice(ground.providers), seconds)


async def provider_restarted(ground: Ground, random: Random, seconds: float) -> None:
    await _restarted(random.choice(ground.providers), seconds)


async def machine_clock(ground: Ground, random: Random, seconds: float) -> None:
    """One machine's clock is wrong, and then set right: what it signs and judges meanwhile is of another time."""
    clock = ground.clocks / random.choice(ground.daemons).name
    write_shift(clock, random.choice((-1, 1)) * random.uniform(5, _CLOCK_OFF))
    await anyio.sleep(seconds)
    write_shift(clock, 0.0)


async def _killed(daemon: Daemon, seconds: float) -> None:
    await daemon.kill()
    await anyio.sleep(seconds)
    await daemon.start()
    await daemon.until_ready()


async def _restarted(daemon: Daemon, seconds: float) -> None:
    status = await daemon.stop()
    await anyio.sleep(seconds)
    await daemon.start()
    await daemon.until_ready()
    if status != 0:
        raise UncleanExit(f"{daemon.name} ended with status {status} after SIGTERM")
