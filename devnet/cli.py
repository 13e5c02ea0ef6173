"""Command line of `devnet`, which runs a complete local market."""

import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import anyio
import attrs
import click
from anyio import CancelScope, create_task_group, open_signal_receiver
from anyio.abc import TaskStatus

from common.command_line import CONTEXT_SETTINGS, Program, completion_command
from common.refusal import Refused
from common.scalars import read_hex
from devnet import client_environment, funding, model, stop
from devnet.app import run_devnet
from devnet.demo import use_each_service
from devnet.errors import DevnetError
from devnet.overview import format_overview
from devnet.settings import DEFAULTS, DevnetSettings

F = TypeVar("F", bound=Callable[..., Any])

_FILE_TYPE: Final = click.Path(path_type=Path, dir_okay=False)
_PORT_TYPE: Final = click.IntRange(1, 65_535)
_AMOUNT_TYPE: Final = click.IntRange(0, 10**12)
_STATE_DIR_OPTION: Final = click.option(
    "--state-dir", type=click.Path(path_type=Path), default=DEFAULTS.state_dir, help="Folder of the market's state."
)


def _parse_address(text: str) -> bytes:
    try:
        return read_hex(text, 20, "an address")
    except Refused as refused:
        raise click.BadParameter(refused.message) from None


@click.group(cls=Program, context_settings=CONTEXT_SETTINGS)
def devnet() -> None:
    """Run a complete local market.

    \b
      devnet up
      eval "$(devnet env)"      in another terminal
    """


def _market_options(command: F) -> F:
    """Add the command-line options of `devnet up` and `devnet demo`."""
    options = [
        _STATE_DIR_OPTION,
        click.option("--chain-id", type=click.IntRange(1, 2**53 - 1), metavar="ID", help="Chain id (default: random)."),
        click.option(
            "--block-time", type=click.IntRange(1, 3600), metavar="SECONDS", help="Time between blocks (default: 1)."
        ),
        click.option("--automine", is_flag=True, help="Mine each transaction immediately."),
        click.option("--model", type=click.Choice([model.SMOLLM]), help="Run a language model (see `make model`)."),
    ]
    for port in DEFAULTS.wanted_ports:
        about = f"Port of the {port.service} (default: {port.default_port} or a free one)."
        options.append(click.option(port.flag, type=_PORT_TYPE, metavar="PORT", help=about))
    for option in reversed(options):
        command = option(command)
    return command


@devnet.command()
@_market_options
def up(**options: Any) -> None:
    """Start a market and run it until Ctrl-C."""
    _run(_run_up, _settings_of(options))


@devnet.command()
@_market_options
def demo(**options: Any) -> None:
    """Start a market, use each service once, and stop the market."""
    settings = _settings_of(options)
    _run(_run_demo, attrs.evolve(settings, model=settings.model or model.is_installed()))


@devnet.command()
@_STATE_DIR_OPTION
def down(state_dir: Path) -> None:
    """Stop the running market, from any terminal."""
    sys.exit(stop.main([str(state_dir)]))


@devnet.command()
@click.option("--key-file", type=_FILE_TYPE, help="Buy with the wallet in this file (written by svc keygen).")
@_STATE_DIR_OPTION
def env(key_file: Path | None, state_dir: Path) -> None:
    """Print the environment variables that svc needs. Use: eval "$(devnet env)"."""
    try:
        click.echo(client_environment.export_commands(state_dir, key_file))
    except DevnetError as error:
        _exit_with_errors(error)


@devnet.command()
@click.argument("address", type=_parse_address, metavar="ADDRESS", help="The account, in hex.")
@click.option("--tokens", type=_AMOUNT_TYPE, default=1000, metavar="N", help="Payment tokens.")
@click.option("--ether", type=_AMOUNT_TYPE, default=10, metavar="N", help="Ether for gas.")
@_STATE_DIR_OPTION
def fund(address: bytes, tokens: int, ether: int, state_dir: Path) -> None:
    """Add tokens and ether to an account in the running market."""
    try:
        click.echo(anyio.run(funding.fund_account, state_dir, address, tokens, ether))
    except DevnetError as error:
        _exit_with_errors(error)


devnet.add_command(completion_command("devnet"))


def main() -> None:
    devnet(prog_name="devnet")


def _settings_of(options: dict[str, Any]) -> DevnetSettings:
    block_time, automine, chosen = (options.pop(name) for name in ("block_time", "automine", "model"))
    if automine and block_time is not None:
        raise click.UsageError("--automine and --block-time cannot be used together")
    pace = None if automine else DEFAULTS.block_time if block_time is None else block_time
    return DevnetSettings(**options, block_time=pace, model=chosen is not None)


def _run(command: Callable[[DevnetSettings], Awaitable[None]], settings: DevnetSettings) -> None:
    try:
        anyio.run(_run_until_signalled, command, settings)
    except BaseExceptionGroup as group:
        failures, bugs = group.split(DevnetError)
        if bugs is not None:
            raise
        _exit_with_errors(*_leaf_exceptions(failures))


def _exit_with_errors(*errors: BaseException) -> NoReturn:
    for error in errors:
        click.echo(f"devnet: {error}", err=True)
    sys.exit(1)


async def _run_up(settings: DevnetSettings) -> None:
    async with run_devnet(settings, _print_line) as running:
        _print_line(format_overview(running, settings))
        shell = f'eval "$(devnet env{_state_dir_flag(settings)})"'
        _print_line(
            f"next: in another terminal, `. .venv/bin/activate; {shell}`, then `svc doctor`, `svc models`, `svc run`"
        )
        _print_line("up: press Ctrl-C to stop")
        await anyio.sleep_forever()


async def _run_demo(settings: DevnetSettings) -> None:
    async with run_devnet(settings, _print_line) as running:
        _print_line(format_overview(running, settings))
        await use_each_service(running, _print_line)
        _print_line("demo complete; stopping")
    if not settings.model:
        _print_line(
            "no language model is installed, so each answer repeats its question; `make model demo` runs a real model"
        )
    _print_line("next: `make devnet` starts a market, README.md shows how to buy in it, and `make test` runs the tests")


def _state_dir_flag(settings: DevnetSettings) -> str:
    """Return the --state-dir flag, or an empty string for the default directory."""
    usual = settings.state_dir == DEFAULTS.state_dir
    return "" if usual else f" --state-dir {shlex.quote(str(settings.state_dir.absolute()))}"


async def _run_until_signalled(command: Callable[[DevnetSettings], Awaitable[None]], settings: DevnetSettings) -> None:
    """Run `command`. The first signal cancels the command. Further signals have no effect."""
    async with create_task_group() as tasks:
        with CancelScope() as running:
            await tasks.start(_cancel_on_signal, running)
            await command(settings)
        tasks.cancel_scope.cancel()


async def _cancel_on_signal(running: CancelScope, *, task_status: TaskStatus[None]) -> None:
    with open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for received in signals:
            _print_line(f"{received.name}: stopping; svcd first finishes its jobs, and the coordinator its requests")
            running.cancel()


def _print_line(line: str) -> None:
    print(line, flush=True)


def _leaf_exceptions(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaf_exceptions(inner)]
    return [] if error is None else [error]


if __name__ == "__main__":
    main()
