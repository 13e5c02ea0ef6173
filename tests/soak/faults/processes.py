"""Daemons exit: killed, or stopped by their operator."""

import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

import anyio
import asyncpg

from coordinatord.storage.database.notices import OUTBOX_MOVED
from tests.soak.ground import Ground
from tests.soak.programs import Daemon
from tests.soak.shifted_clock import write_shift

_DESCRIPTOR_LIMIT: Final = 3  # fewer than any daemon has open
_MAX_CLOCK_SHIFT_S: Final = 900.0
_MOMENT_TIMEOUT_S: Final = 8.0  # without the moment, the process is killed anyway

Strike = Callable[[Ground, Random, float], Awaitable[None]]


class UncleanExit(Exception):
    """A daemon exited with a status other than 0 after SIGTERM."""


async def coordinator_killed(ground: Ground, random: Random, seconds: float) -> None:
    await _killed(random.choice(ground.coordinators), seconds)


async def coordinator_restarted(ground: Ground, random: Random, seconds: float) -> None:
    await _restarted(random.choice(ground.coordinators), seconds)


def killed_before(method: str) -> Strike:
    """Kill a coordinator during a call that has not reached the node."""
    return partial(_killed_at, method, answered=False)


def killed_after(method: str) -> Strike:
    """Kill a coordinator after the node has executed its call, before the response."""
    return partial(_killed_at, method, answered=True)


def killed_at_entry(entry: str) -> Strike:
    """Kill a coordinator when a transaction has committed such an entry of the outbox's log. Of two coordinators, the
    killed one may have written it."""
    return partial(_killed_at_entry, entry)


async def _killed_at(method: str, ground: Ground, random: Random, seconds: float, *, answered: bool) -> None:
    daemon = random.choice(ground.coordinators)
    with ground.rpc.moment(daemon.name, method, answered=answered) as moment:
        with anyio.move_on_after(_MOMENT_TIMEOUT_S):
            await moment.met.wait()
        await daemon.kill()
    await _again(daemon, seconds)


async def _killed_at_entry(entry: str, ground: Ground, random: Random, seconds: float) -> None:
    daemon = random.choice(ground.coordinators)
    heard = anyio.Event()
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection = await asyncpg.connect(ground.database_url, timeout=5)
        try:
            await connection.add_listener(
                OUTBOX_MOVED, lambda *notice: heard.set() if str(notice[-1]).startswith(entry) else None
            )
            with anyio.move_on_after(_MOMENT_TIMEOUT_S):
                await heard.wait()
            await daemon.kill()
        finally:
            connection.terminate()
    await daemon.kill()
    await _again(daemon, seconds)


async def provider_killed(ground: Ground, random: Random, seconds: float) -> None:
    await _killed(random.choice(ground.providers), seconds)


async def provider_restarted(ground: Ground, random: Random, seconds: float) -> None:
    await _restarted(random.choice(ground.providers), seconds)


async def machine_clock(ground: Ground, random: Random, seconds: float) -> None:
    """Set one machine's clock wrong, and later right. Its signatures and checks use the wrong time."""
    clock = ground.clocks / random.choice(ground.daemons).name
    write_shift(clock, random.choice((-1, 1)) * random.uniform(5, _MAX_CLOCK_SHIFT_S))
    await anyio.sleep(seconds)
    write_shift(clock, 0.0)


async def descriptors_exhausted(ground: Ground, random: Random, seconds: float) -> None:
    """Take away a daemon's descriptors: it cannot open files, accept or make connections, or resolve names. A daemon
    that is starting would end with an error, as it should."""
    daemon = random.choice(ground.daemons)
    if (pid := daemon.pid) is None or not await daemon.ready():
        return
    with suppress(ProcessLookupError):  # another lane may kill it
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_DESCRIPTOR_LIMIT, limits[1]))
        await anyio.sleep(seconds)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


async def _killed(daemon: Daemon, seconds: float) -> None:
    await daemon.kill()
    await _again(daemon, seconds)


async def _again(daemon: Daemon, seconds: float) -> None:
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
