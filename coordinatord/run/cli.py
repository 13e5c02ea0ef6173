"""Command line of `coordinatord`. Settings come from the environment and from systemd credentials."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from common.command_line import CONTEXT_SETTINGS, Program, completion_command, discard_output
from common.daemon.process import RELEASE
from common.daemon.secrets import hide_memory
from common.extras import missing_extra_message

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
_JSON_OPTION: Final = click.option("--json", "as_json", is_flag=True, help="Write a list of rows as JSON.")


class _CoordinatordGroup(Program):
    """Command group that imports `market` only when that command runs, because it needs an optional dependency."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return (_MARKET, _load_market(), args[1:]) if args[:1] == [_MARKET] else super().resolve_command(ctx, args)


def _load_market() -> click.Command:
    try:
        command: click.Command = import_module("coordinatord.market.commands").market
    except ModuleNotFoundError as error:
        sys.exit(missing_extra_message(error, "coordinatord market", "market"))
    return command


def _load_commands() -> Any:
    """Return the module of the daemon's commands, imported late because `--help` and completion do not need it."""
    try:
        return import_module("coordinatord.run.commands")
    except ModuleNotFoundError as error:
        sys.exit(missing_extra_message(error, "coordinatord", "coordinator"))


def main() -> None:
    """Run the command. Exit with 0 on success, 1 on an error or failed check, 2 for a wrong command line."""
    hide_memory()  # before a key is read
    try:
        coordinatord(prog_name="coordinatord")
    finally:
        _flush_output()


def _flush_output() -> None:
    """Write buffered output, or drop the output if the reader has closed the pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


@click.group(
    cls=_CoordinatordGroup, context_settings=CONTEXT_SETTINGS, environment=_ENVIRONMENT, exit_codes=_EXIT_CODES
)
@click.version_option(RELEASE, message="%(version)s")
def coordinatord() -> None:
    """Coordinate a market of sealed compute jobs.

    \b
      coordinatord check      check everything that the daemon needs
      coordinatord serve
    """


@coordinatord.command()
def serve() -> None:
    """Run the coordinator until SIGTERM."""
    _load_commands().run_command("serve")


@coordinatord.command()
def migrate() -> None:
    """Apply the pending migrations of the database."""
    _load_commands().run_command("migrate")


@coordinatord.command()
@_JSON_OPTION
def settings(as_json: bool) -> None:
    """Show every setting: value, source, meaning, range and default."""
    try:
        status = _load_commands().print_settings(as_json)
    except BrokenPipeError:  # the reader closed the pipe
        status = 0
    sys.exit(status)


@coordinatord.command()
@_JSON_OPTION
def check(as_json: bool) -> None:
    """Check everything that the daemon needs."""
    sys.exit(_load_commands().print_checks(as_json))


@coordinatord.command()
@_JSON_OPTION
def keys(as_json: bool) -> None:
    """Show the address or the public key of every key that is set."""
    _load_commands().run_command("keys", as_json=as_json)


@coordinatord.command()
@_JSON_OPTION
def relayers(as_json: bool) -> None:
    """Show every account that relayed, and its pending transactions."""
    _load_commands().run_command("relayers", as_json=as_json)


@coordinatord.command()
def drain() -> None:
    """Follow a former relayer account until it is no longer needed."""
    _load_commands().run_command("drain")


@coordinatord.command()
@_JSON_OPTION
def budgets(as_json: bool) -> None:
    """Show the highest gas use by signer in the last day."""
    _load_commands().run_command("budgets", as_json=as_json)


@coordinatord.command("new-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), help="Path of the new file.")
def new_key(file: Path) -> None:
    """Create a private key file. Only its owner can read it. Shows the address."""
    _load_commands().make_key(file)


@coordinatord.command(_MARKET)
def market() -> None:
    """Deploy, verify and administer a market's contracts."""


coordinatord.add_command(completion_command("coordinatord"))
