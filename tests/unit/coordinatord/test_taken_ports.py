"""A port in use stops the boot with an error that names the variable."""

import socket
from collections.abc import Iterator

import pytest

from common.daemon.operators_port import bind_operators_port
from common.daemon.process import Fatal
from coordinatord.http.server.serving import listening_socket

HOST = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as other:
        yield other.getsockname()[1]


def test_taken_port_names_its_variable(taken: int) -> None:
    with pytest.raises(Fatal, match=f"^PORT, BIND_HOST: {HOST}:{taken} cannot be bound: "):
        listening_socket(taken, HOST)


def test_foreign_bind_address_names_its_variable() -> None:
    with pytest.raises(Fatal, match=r"^PORT, BIND_HOST: 192\.0\.2\.1:8402 cannot be bound: "):
        listening_socket(8402, "192.0.2.1")


def test_taken_metrics_port_names_its_variable(taken: int) -> None:
    with pytest.raises(Fatal, match=f"METRICS_PORT: {HOST}:{taken}: "):
        bind_operators_port(HOST, taken, "METRICS_HOST, METRICS_PORT")
