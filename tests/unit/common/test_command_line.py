"""Command lines, and plain-text tables on terminals of several widths and in a pipe."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from common.command_line import CONTEXT_SETTINGS, Program
from common.text_table import grid_lines, hanging_text
from coordinatord.market.commands import market
from coordinatord.run.cli import coordinatord
from devnet.cli import devnet
from svc.cli.main import svc
from svcd.run.cli import svcd

PROGRAMS = ["coordinatord", "devnet", "svc", "svcd"]
_MAX_HELP_CHARS = 80
_MAX_SHORT_HELP_CHARS = 62  # what fits next to the longest name on 80 columns


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


def commands_below(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            below = market if each == "market" and name == "coordinatord" else command.get_command(context, each)
            assert below is not None
            yield from commands_below(below, f"{name} {each}")


@pytest.mark.parametrize("program", [coordinatord, svcd, svc, devnet], ids=["coordinatord", "svcd", "svc", "devnet"])
def test_every_command_and_option_has_one_line_of_help(program: click.Group) -> None:
    odd = []
    for name, command in commands_below(program, program.name or ""):
        assert command.help, name
        assert not command.get_short_help_str(_MAX_SHORT_HELP_CHARS).endswith("..."), name
        context = click.Context(command, **CONTEXT_SETTINGS)
        for parameter in command.params:
            _, text = parameter.get_help_record(context) or ("", "")
            sentence = text.partition("  [")[0]
            if not (sentence[:1].isupper() and sentence.endswith(".") and len(text) <= _MAX_HELP_CHARS):
                odd.append(f"{name} {parameter.name}: {text}")
    assert odd == []


def test_help_ends_with_the_environment_and_the_exit_codes() -> None:
    program = click.group(
        cls=Program, context_settings=CONTEXT_SETTINGS, environment=[("PORT", "the port")], exit_codes={0: "done"}
    )
    shown = CliRunner().invoke(program(lambda: None), ["-h"]).output
    assert shown.endswith("Environment:\n  PORT  the port\n\nExit codes:\n  0  done\n")


ADDRESS = "0x" + "ab" * 20
ROWS = [("signer", "kind", "gas, this hour", "gas, 24 hours"), (ADDRESS, "request_capacity", "1,000,000", "22,000,000")]


def test_grid_that_fits_has_a_line_for_each_row() -> None:
    assert grid_lines(ROWS, 120, right_aligned={2, 3}) == grid_lines(ROWS, None, right_aligned={2, 3})
    assert len(grid_lines(ROWS, 120, right_aligned={2, 3})) == len(ROWS)


def test_grid_too_wide_puts_the_first_cell_above_the_rest() -> None:
    assert grid_lines(ROWS, 80, right_aligned={2, 3}) == [
        "signer",
        "  kind              gas, this hour  gas, 24 hours",
        ADDRESS,
        "  request_capacity       1,000,000     22,000,000",
    ]


def test_text_is_wrapped_below_its_own_beginning() -> None:
    head = "right  gas                "
    lines = hanging_text(head, "a block holds 60,000,000; a transaction takes 16,777,216 at most", 60).splitlines()
    assert lines[0].startswith(head)
    assert all(line.startswith(" " * len(head)) and len(line) <= 60 for line in lines[1:])


def test_word_too_long_for_its_column_stays_whole() -> None:
    key = "fc" * 32
    assert hanging_text("right  escrow keys          ", f"announced is {key}", 80, 7).splitlines() == [
        "right  escrow keys",
        "       announced is",
        f"       {key}",
    ]
