"""Command line of `coordinatord`. Settings come from the environment and from systemd credentials."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from common.command_line import CONTEXT, Program, completion_command
from common.daemon.process import RELEASE
from common.daemon.secrets import hide_memory
from common.extras import missing_extra

_MARKET: Final = "market"
_ENVIRONMENT: Final = (
    ("DATABASE_URL, RPC_URL, PORT, …", "settings; `coordinatord settings` shows all with value, range and default"),
    ("CREDENTIALS_DIRECTORY", "folder of secret settings, set by systemd"),
)
_EXIT_CODES: Final = {
    0: "done",
    1: "failed, or a check or setting is WRONG",
    2: "wrong command line",
    130: "interrupted",
}
_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Write a list of rows as JSON.")


class _Coordinatord(Program):
    """Group that imports `market` only to run it, because that command needs an optional dependency."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return (_MARKET, _market(), args[1:]) if args[:1] == [_MARKET] else super().resolve_command(ctx, args)


def _market() -> click.Command:
    try:
        command: click.Command = import_module("coordinatord.market.commands").market
    except ModuleNotFoundError as error:
        sys.exit(missing_extra(error, "coordinatord market", "market"))
    return command


def _commands() -> Any:
    """Import the daemon. `--help` and completion work without it."""
    try:
        return import_module("coordinatord.run.commands")
    except ModuleNotFoundError as error:
        sys.exit(missing_extra(error, "coordinatord", "coordinator"))


def main() -> None:
    """Run the command. Exit with 0 on success, 1 on an error or failed check, 2 for a wrong command line."""
    hide_memory()  # before a key is read
    coordinatord(prog_name="coordinatord")


@click.group(cls=_Coordinatord, context_settings=CONTEXT, environment=_ENVIRONMENT, exit_codes=_EXIT_CODES)
@click.version_option(RELEASE, message="%(version)s")
def coordinatord() -> None:
    """Coordinate a market of sealed compute jobs.

    \b
      coordinatord check      check everything that a start needs
      coordinatord serve
    """


@coordinatord.command()
def serve() -> None:
    """Run the coordinator until SIGTERM."""
    _commands().run("serve")


@coordinatord.command()
def migrate() -> None:
    """Bring the database up to date."""
    _commands().run("migrate")


@coordinatord.command()
@_JSON
def settings(as_json: bool) -> None:
    """Show every setting: value, source, meaning, range and default."""
    try:
        status = _commands().settings(as_json)
    except BrokenPipeError:  # the reader closed the pipe
        sys.stdout = None  # the interpreter would flush it again
        status = 0
    sys.exit(status)


@coordinatord.command()
@_JSON
def check(as_json: bool) -> None:
    """Check everything that a start needs."""
    sys.exit(_commands().check(as_json))


@coordinatord.command()
@_JSON
def keys(as_json: bool) -> None:
    """Show the public side of every key that is set."""
    _commands().run("keys", as_json=as_json)


@coordinatord.command()
@_JSON
def relayers(as_json: bool) -> None:
    """Show every account that relayed, and its pending transactions."""
    _commands().run("relayers", as_json=as_json)


@coordinatord.command()
def drain() -> None:
    """Follow a replaced relayer account until its key is not needed."""
    _commands().run("drain")


@coordinatord.command()
@_JSON
def budgets(as_json: bool) -> None:
    """Show the highest gas use by signer in the last day."""
    _commands().run("budgets", as_json=as_json)


@coordinatord.command("new-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), help="Path of the new file.")
def new_key(file: Path) -> None:
    """Create a private key file. Only its owner can read it. Shows the address."""
    _commands().make_key(file)


@coordinatord.command(_MARKET)
def market() -> None:
    """Deploy, verify and administer a market's contracts."""


coordinatord.add_command(completion_command("coordinatord"))
