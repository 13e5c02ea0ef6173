"""One market for all tests of the command line, and `svc` as a person or a script calls it."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from devnet import manifest
from tests.e2e.conftest import launched

_SECONDS = 60


@attrs.frozen
class Market:
    state: Path
    environment: dict[str, str]  # of a client of this market


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    state = tmp_path_factory.mktemp("market") / "state"
    devnet = launched(state, "--automine")
    with devnet.process:
        devnet.wait_up()
        exported = (shlex.split(line)[1].partition("=") for line in manifest.exports(state).splitlines())
        yield Market(state, {name: value for name, _, value in exported})
        devnet.end(signal.SIGTERM)


@attrs.frozen
class Ended:
    code: int
    out: str
    err: str


Svc = Callable[..., Ended]


@pytest.fixture
def svc(market: Market) -> Svc:
    """Runs the program; keyword arguments are variables of its environment, None takes one away."""

    def run(*arguments: str, stdin: str = "", **changed: str | None) -> Ended:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
        variables = {**clean, **market.environment, **changed}
        ran = subprocess.run(
            [str(Path(sys.executable).with_name("svc")), *arguments],
            input=stdin,
            env={name: value for name, value in variables.items() if value is not None},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        return Ended(ran.returncode, ran.stdout, ran.stderr)

    return run
