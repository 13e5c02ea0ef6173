"""Ports on loopback: is this one free, and which one is."""

import errno
import secrets
import socket
from collections.abc import Iterable
from typing import Final

import attrs

from devnet.trouble import Trouble

LOOPBACK: Final = "127.0.0.1"
# Below the range that systems hand to outgoing connections, so that none of those takes it in between.
_FREE_RANGE: Final = range(20_000, 32_000)


@attrs.frozen
class Port:
    """A port, what listens on it, and the flag that moves it."""

    number: int
    service: str
    flag: str


def require_distinct_and_free(ports: Iterable[Port]) -> None:
    """Raise `Trouble` naming the first port that another listens on or that two services here want."""
    taken: dict[int, Port] = {}
    for port in ports:
        other = taken.setdefault(port.number, port)
        if other is not port:
            raise Trouble(
                f"port {port.number} is wanted by the {other.service} and the {port.service}: "
                f"set {port.flag} to another"
            )
        if not is_free(port.number):
            raise Trouble(
                f"port {port.number} for the {port.service} is taken by another process: "
                f"stop that one, or choose another port with {port.flag}"
            )


def is_free(number: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that lingers in TIME_WAIT does not make the port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, number))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def pick_free() -> int:
    """A free port, drawn at random so that runs side by side do not draw the same."""
    while not is_free(number := secrets.choice(_FREE_RANGE)):
        pass
    return number
