"""Find free ports, and reserve the ports of a devnet until its services listen."""

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
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - only checked, never bound by a service

# Below the system's ephemeral ports. Otherwise an outgoing connection could take a port before the service listens.
_FREE_RANGE: Final = range(20_000, 32_000)
_MAX_RESERVATIONS: Final = 64
_RESERVATIONS: Final[deque[ExitStack]] = deque()  # of the ports that `pick_free` returned last


@attrs.frozen
class WantedPort:
    """Port that a service needs: the user's `chosen_port`. If it is None, use `default_port`, or a free port if
    `default_port` is in use."""

    service: str
    flag: str  # command-line option
    default_port: int
    chosen_port: int | None = None
    host: str = LOOPBACK


@contextmanager
def reserve_ports(wanted: Iterable[WantedPort]) -> Iterator[dict[str, int]]:
    """Reserve a port for each service against other devnets on this machine. Yield the ports by flag.

    Raise `DevnetError` if a chosen port is in use, or is chosen for two services.
    """
    numbers: dict[str, int] = {}
    services: dict[int, WantedPort] = {}
    with ExitStack() as reservations:
        # Reserve the ports that the user chose first, because the other services can use any port.
        for port in sorted(wanted, key=lambda each: each.chosen_port is None):
            number = port.default_port if port.chosen_port is None else port.chosen_port
            other = services.get(number)
            free = other is None and _reserve_port(number, port.host, reservations)
            if not free and port.chosen_port is not None:
                raise DevnetError(_port_taken_message(port, other))
            while not free:
                number = pick_free(port.host)
                free = _reserve_port(number, port.host, reservations)
            numbers[port.flag] = number
            services[number] = port
        yield numbers


def is_port_free(number: int, host: str = LOOPBACK) -> bool:
    with socket.socket() as probe:
        # The servers also set this option, so a connection in TIME_WAIT does not make the port unusable for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def pick_free(host: str = LOOPBACK) -> int:
    """Return a free port, and reserve it until this process has picked `_MAX_RESERVATIONS` more ports."""
    while True:
        number = secrets.choice(_FREE_RANGE)
        with ExitStack() as reservations:
            if _reserve_name(f"picked-{number}", reservations) and is_port_free(number, host):
                if len(_RESERVATIONS) == _MAX_RESERVATIONS:
                    _RESERVATIONS.popleft().close()
                _RESERVATIONS.append(reservations.pop_all())
                return number


def _reserve_port(number: int, host: str, reservations: ExitStack) -> bool:
    """Reserve a free port against other devnets until the service listens. Return True if
    the port is reserved."""
    return _reserve_name(f"port-{number}", reservations) and is_port_free(number, host)


def _reserve_name(name: str, reservations: ExitStack) -> bool:
    """Reserve a machine-wide name. Return False if another process has reserved the name.

    The name is an abstract Unix socket, which the kernel releases when the process ends.
    """
    if sys.platform != "linux":
        return True
    reservation = reservations.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        reservation.bind(f"\0sealed-job-devnet-{name}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def _port_taken_message(port: WantedPort, other: WantedPort | None) -> str:
    if other is not None:
        return (
            f"port {port.chosen_port} is chosen for both the {other.service} and the {port.service}: "
            f"set {port.flag} to another port"
        )
    return (
        f"port {port.chosen_port} for the {port.service} is in use: stop the process that uses it, choose another port "
        f"with {port.flag}, or omit the flag for a free port"
    )
