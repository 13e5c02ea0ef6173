"""Processes with few file descriptors, and idle connections that use them up."""

import errno
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

_SPARE_DESCRIPTORS: Final = 500  # for this process itself


def limited(command: Sequence[str], descriptors: int | None) -> Sequence[str]:
    """Return the command with a limit of descriptors. None keeps the limit."""
    if descriptors is None:
        return command
    return ("sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command)


@contextmanager
def idle_connections(port: int, count: int) -> Iterator[None]:
    """Open idle connections to a loopback port. Some may wait in the server's backlog."""
    with _enough_descriptors(count), ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            assert connection.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)
        yield


@contextmanager
def _enough_descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"{wanted} open files are needed, and {hard} allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
