"""Run `svc` like a user or a script, in a market shared by these tests."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from tests.e2e.conftest import Market

_SECONDS = 60


@attrs.frozen
class Ended:
    code: int
    out: str
    err: str


Svc = Callable[..., Ended]


@pytest.fixture
def svc(market: Market) -> Svc:
    """Run the program. Keyword arguments set environment variables, and None removes one."""

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
