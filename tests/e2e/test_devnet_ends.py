"""No process of a devnet survives it, however it ends."""

import os
import signal

import pytest

from tests.e2e.conftest import Start, descendants, wait_gone

LONG = pytest.mark.long  # each starts a separate devnet, and quick runs need only one


@pytest.mark.long
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=LONG), pytest.param(signal.SIGHUP, marks=LONG)],
)
def test_signal_to_end_is_obeyed_in_order(start: Start, number: signal.Signals) -> None:
    devnet = start()
    manifest = devnet.wait_up()
    below = descendants(devnet.process.pid)
    assert below >= set(manifest["processes"].values())
    assert devnet.end(number) == 0
    assert devnet.errors() == ""
    wait_gone(below)
    assert not devnet.state.joinpath("devnet.json").exists()


def test_devnet_killed_while_it_starts_leaves_no_process(start: Start) -> None:
    devnet = start()
    assert devnet.process.stdout is not None
    devnet.process.stdout.readline()  # its services are starting now
    while not (below := descendants(devnet.process.pid)):
        pass
    devnet.end(signal.SIGKILL)
    wait_gone(below)


@LONG
@pytest.mark.parametrize("service", ["anvil", "postgres", "pin store", "gateway"])
def test_service_that_dies_takes_the_devnet_down_with_one_line(start: Start, service: str) -> None:
    devnet = start()
    manifest = devnet.wait_up()
    below = descendants(devnet.process.pid)
    os.kill(manifest["processes"][service], signal.SIGKILL)
    assert devnet.process.wait(60) == 1
    (line,) = devnet.errors().splitlines()
    assert line.startswith(f"devnet: {service} ended unexpectedly")
    wait_gone(below)


@LONG
def test_second_devnet_in_a_directory_is_refused(start: Start) -> None:
    first = start()
    first.wait_up()
    second = start()
    assert second.process.wait(60) == 1
    (line,) = second.errors().splitlines()
    assert f"another devnet (process {first.process.pid})" in line
    assert "--state-dir" in line
    assert first.end(signal.SIGTERM) == 0
