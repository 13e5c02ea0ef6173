"""Ports on this machine: is this one free, which one is, and holding those of a devnet that is about to listen."""

import errno
import secrets
import socket
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import attrs

from devnet.errors import DevnetError

LOOPBACK: Final = "127.0.0.1"
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - nothing is served here
# Below the range that systems hand to outgoing connections, so that none of those takes it in between.
_FREE_RANGE: Final = range(20_000, 32_000)
_KEPT: Final = 64
_PICKED: Final[deque[ExitStack]] = deque()  # holds of the ports that were picked last


@attrs.frozen
class WantedPort:
    """What is to listen, and where: on the port that a person has chosen, else on the usual one or a free one."""

    service: str
    flag: str  # moves it
    usual: int
    chosen: int | None = None
    host: str = LOOPBACK


@contextmanager
def held(wanted: Iterable[WantedPort]) -> Iterator[dict[str, int]]:
    """The port of each flag, kept from every other devnet of this machine until left.

    Raises `DevnetError` naming the first chosen port that another listens on or that two services here want.
    """
    numbers: dict[str, int] = {}
    services: dict[int, WantedPort] = {}
    with ExitStack() as holds:
        # What was chosen comes first, and the usual ports give way to it.
        for port in sorted(wanted, key=lambda each: each.chosen is None):
            number = port.usual if port.chosen is None else port.chosen
            other = services.get(number)
            free = other is None and _hold(number, port.host, holds)
            if not free and port.chosen is not None:
                raise DevnetError(_refusal(port, other))
            while not free:
                number = pick_free(port.host)
                free = _hold(number, port.host, holds)
            numbers[port.flag] = number
            services[number] = port
        yield numbers


def is_free(number: int, host: str = LOOPBACK) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that lingers in TIME_WAIT does not make the port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def pick_free(host: str = LOOPBACK) -> int:
    """A free port. Nobody else picks it before it is listened on, in this process or in another, unless this one picks
    `_KEPT` more meanwhile."""
    while True:
        number = secrets.choice(_FREE_RANGE)
        with ExitStack() as holds:
            if _alone(f"picked-{number}", holds) and is_free(number, host):
                if len(_PICKED) == _KEPT:
                    _PICKED.popleft().close()
                _PICKED.append(holds.pop_all())
                return number


def _hold(number: int, host: str, holds: ExitStack) -> bool:
    """From here until the service listens, seconds go by in which another devnet would find the port free as well."""
    return _alone(f"port-{number}", holds) and is_free(number, host)


def _alone(name: str, holds: ExitStack) -> bool:
    """Whether nobody on this machine has the name; this process has it from now on, however it ends: a name in the
    kernel goes with its process."""
    if sys.platform != "linux":
        return True
    hold = holds.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        hold.bind(f"\0sealed-job-devnet-{name}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def _refusal(port: WantedPort, other: WantedPort | None) -> str:
    if other is not None:
        return f"port {port.chosen} is wanted by the {other.service} and the {port.service}: set {port.flag} to another"
    return (
        f"port {port.chosen} for the {port.service} is taken by another process: stop that one, choose another port "
        f"with {port.flag}, or leave the flag out for a free one"
    )
