"""Command line of `devnet`, a complete local market."""

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

from common.command_line import CONTEXT, Program, completion_command
from common.refusal import Refused
from common.scalars import read_hex
from devnet import client_environment, funding, model, stop
from devnet.app import local_world
from devnet.demo import prove
from devnet.errors import DevnetError
from devnet.overview import overview
from devnet.settings import DEFAULTS, DevnetSettings

F = TypeVar("F", bound=Callable[..., Any])

_FILE: Final = click.Path(path_type=Path, dir_okay=False)
_PORT: Final = click.IntRange(1, 65_535)
_WHOLE: Final = click.IntRange(0, 10**12)
_STATE_DIR: Final = click.option(
    "--state-dir", type=click.Path(path_type=Path), default=DEFAULTS.state_dir, help="Folder of the market's state."
)


def _address(text: str) -> bytes:
    try:
        return read_hex(text, 20, "an address")
    except Refused as refused:
        raise click.BadParameter(refused.message) from None


@click.group(cls=Program, context_settings=CONTEXT)
def devnet() -> None:
    """Run a complete local market.

    \b
      devnet up
      eval "$(devnet env)"      in another terminal
    """


def _market_options(command: F) -> F:
    """Add the options of a new market."""
    options = [
        _STATE_DIR,
        click.option("--chain-id", type=click.IntRange(1, 2**53 - 1), metavar="ID", help="Chain id (default: random)."),
        click.option(
            "--block-time", type=click.IntRange(1, 3600), metavar="SECONDS", help="Time between blocks (default: 1)."
        ),
        click.option("--automine", is_flag=True, help="Mine each transaction at once."),
        click.option("--model", type=click.Choice([model.SMOLLM]), help="Run a language model (see `make model`)."),
    ]
    for port in DEFAULTS.listening:
        about = f"Port of the {port.service} (default: {port.usual} or a free one)."
        options.append(click.option(port.flag, type=_PORT, metavar="PORT", help=about))
    for option in reversed(options):
        command = option(command)
    return command


@devnet.command()
@_market_options
def up(**options: Any) -> None:
    """Start a market and run it until Ctrl-C."""
    _run(_up, _settings(options))


@devnet.command()
@_market_options
def demo(**options: Any) -> None:
    """Start a market, use each of its services once, and stop it."""
    settings = _settings(options)
    _run(_demo, attrs.evolve(settings, model=settings.model or model.is_installed()))


@devnet.command()
@_STATE_DIR
def down(state_dir: Path) -> None:
    """Stop the running market, from any terminal."""
    sys.exit(stop.main([str(state_dir)]))


@devnet.command()
@click.option("--key-file", type=_FILE, help="Buy with this wallet, as svc keygen writes it.")
@_STATE_DIR
def env(key_file: Path | None, state_dir: Path) -> None:
    """Write the variables that svc needs: eval "$(devnet env)"."""
    try:
        click.echo(client_environment.exports(state_dir, key_file))
    except DevnetError as error:
        _fail(error)


@devnet.command()
@click.argument("address", type=_address, metavar="ADDRESS", help="The account, in hex.")
@click.option("--tokens", type=_WHOLE, default=1000, metavar="N", help="Payment tokens.")
@click.option("--ether", type=_WHOLE, default=10, metavar="N", help="Ether for gas.")
@_STATE_DIR
def fund(address: bytes, tokens: int, ether: int, state_dir: Path) -> None:
    """Give an account tokens and ether in the running market."""
    try:
        click.echo(anyio.run(funding.fund, state_dir, address, tokens, ether))
    except DevnetError as error:
        _fail(error)


devnet.add_command(completion_command("devnet"))


def main() -> None:
    devnet(prog_name="devnet")


def _settings(options: dict[str, Any]) -> DevnetSettings:
    block_time, automine, chosen = (options.pop(name) for name in ("block_time", "automine", "model"))
    if automine and block_time is not None:
        raise click.UsageError("--automine and --block-time exclude each other")
    pace = None if automine else DEFAULTS.block_time if block_time is None else block_time
    return DevnetSettings(**options, block_time=pace, model=chosen is not None)


def _run(command: Callable[[DevnetSettings], Awaitable[None]], settings: DevnetSettings) -> None:
    try:
        anyio.run(_until_signalled, command, settings)
    except BaseExceptionGroup as group:
        troubles, bugs = group.split(DevnetError)
        if bugs is not None:
            raise
        _fail(*_leaves(troubles))


def _fail(*errors: BaseException) -> NoReturn:
    for error in errors:
        click.echo(f"devnet: {error}", err=True)
    sys.exit(1)


async def _up(settings: DevnetSettings) -> None:
    async with local_world(settings, _say) as up:
        _say(overview(up, settings))
        shell = f'eval "$(devnet env{_at(settings)})"'
        _say(f"next: in another terminal, `. .venv/bin/activate; {shell}`, then `svc doctor`, `svc models`, `svc run`")
        _say("up: Ctrl-C stops it")
        await anyio.sleep_forever()


async def _demo(settings: DevnetSettings) -> None:
    async with local_world(settings, _say) as up:
        _say(overview(up, settings))
        await prove(up, _say)
        _say("demo complete; stopping")
    if not settings.model:
        _say("no language model is installed, so each answer repeats its question; `make model demo` runs a real model")
    _say("next: `make devnet` starts a market, README.md shows how to buy in it, and `make test` runs the tests")


def _at(settings: DevnetSettings) -> str:
    """Return the flag for a state directory other than the default."""
    usual = settings.state_dir == DEFAULTS.state_dir
    return "" if usual else f" --state-dir {shlex.quote(str(settings.state_dir.absolute()))}"


async def _until_signalled(command: Callable[[DevnetSettings], Awaitable[None]], settings: DevnetSettings) -> None:
    """Run `command`. The first signal cancels it, and further signals are ignored."""
    async with create_task_group() as tasks:
        with CancelScope() as running:
            await tasks.start(_cancel_on_signal, running)
            await command(settings)
        tasks.cancel_scope.cancel()


async def _cancel_on_signal(running: CancelScope, *, task_status: TaskStatus[None]) -> None:
    with open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for received in signals:
            _say(f"{received.name}: stopping after svcd finishes its jobs and the coordinator its requests")
            running.cancel()


def _say(line: str) -> None:
    print(line, flush=True)


def _leaves(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [] if error is None else [error]


if __name__ == "__main__":
    main()
