import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from common.command_line import CONTEXT, Program

PROGRAMS = ["coordinatord", "svc", "svcd"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_completes_its_commands(program: str) -> None:
    script = subprocess.run(
        [sys.executable, "-m", program, "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    variable = f"_{program.upper()}_COMPLETE"
    assert f"{variable}=bash_complete" in script
    completed = subprocess.run(
        [sys.executable, "-m", program],
        env={variable: "bash_complete", "COMP_WORDS": f"{program} comp", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout == "plain,completion\n"


def test_help_ends_with_the_environment_and_the_exit_codes() -> None:
    program = click.group(
        cls=Program, context_settings=CONTEXT, environment=[("PORT", "the port")], exit_codes={0: "done"}
    )
    shown = CliRunner().invoke(program(lambda: None), ["-h"]).output
    assert shown.endswith("Environment:\n  PORT  the port\n\nExit codes:\n  0  done\n")
