"""Command line of `devnet`, a complete local market."""

import argparse
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from anyio import CancelScope, create_task_group, open_signal_receiver
from anyio.abc import TaskStatus

from common.refusal import Refused
from common.scalars import read_hex
from coordinatord.chain.relayer.fees import DEVNET_CHAIN_IDS
from devnet import client_environment, demo, funding, model, stop
from devnet.app import local_world
from devnet.errors import DevnetError
from devnet.overview import overview
from devnet.settings import DEFAULTS, DevnetSettings


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "env":
        return _env(options.state_dir, options.key_file)
    if options.command == "fund":
        return _funded(options)
    if options.command == "down":
        return stop.main([str(options.state_dir)])
    settings = DevnetSettings(
        state_dir=options.state_dir,
        chain_id=options.chain_id,
        block_time=None if options.automine else options.block_time,
        rpc_port=options.rpc_port,
        database_port=options.database_port,
        pin_store_port=options.pin_store_port,
        gateway_port=options.gateway_port,
        api_port=options.api_port,
        metrics_port=options.metrics_port,
        provider_metrics_port=options.provider_metrics_port,
        model=options.model is not None or (options.command == "demo" and model.is_installed()),
    )
    command = {"up": _up, "demo": _demo}[options.command]
    try:
        anyio.run(_until_signalled, command, settings)
    except BaseExceptionGroup as group:
        troubles, bugs = group.split(DevnetError)
        if bugs is not None:
            raise
        for error in _leaves(troubles):
            print(f"devnet: {error}", file=sys.stderr)
        return 1
    return 0


def _env(state_dir: Path, key_file: Path | None) -> int:
    try:
        print(client_environment.exports(state_dir, key_file))
    except DevnetError as error:
        print(f"devnet: {error}", file=sys.stderr)
        return 1
    return 0


def _funded(options: argparse.Namespace) -> int:
    try:
        print(anyio.run(funding.fund, options.state_dir, options.address, options.tokens, options.ether))
    except DevnetError as error:
        print(f"devnet: {error}", file=sys.stderr)
        return 1
    return 0


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
        await demo.prove(up, _say)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="devnet", description="Run a complete local market.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, what in (
        ("up", "start a market and run it until Ctrl-C"),
        ("demo", "start a market, use each of its services once, and stop it"),
    ):
        _add_options(commands.add_parser(name, help=what, description=what))
    what = "stop the running market, from any terminal"
    _add_state_dir(commands.add_parser("down", help=what, description=what))
    what = 'print the variables that svc needs for the running market: eval "$(devnet env)"'
    env = commands.add_parser("env", help=what, description=what)
    env.add_argument("--key-file", type=Path, metavar="FILE", help="buy with this wallet, as svc keygen writes it")
    _add_state_dir(env)
    what = "give an account payment tokens and ether for gas, in the running market"
    fund = commands.add_parser("fund", help=what, description=what)
    fund.add_argument("address", type=_address, metavar="ADDRESS", help="the account, in hex")
    fund.add_argument("--tokens", type=_whole, default=1000, metavar="N", help="payment tokens (default: 1000)")
    fund.add_argument("--ether", type=_whole, default=10, metavar="N", help="ether for gas (default: 10)")
    _add_state_dir(fund)
    return parser


def _add_options(command: argparse.ArgumentParser) -> None:
    _add_state_dir(command)
    which = f"chain id (default: a random one from {DEVNET_CHAIN_IDS.start} to {DEVNET_CHAIN_IDS[-1]})"
    command.add_argument("--chain-id", type=_chain_id, metavar="ID", help=which)
    pace = command.add_mutually_exclusive_group()
    pace.add_argument(
        "--block-time",
        type=_seconds,
        default=DEFAULTS.block_time,
        metavar="SECONDS",
        help="time between blocks (default: 1)",
    )
    pace.add_argument("--automine", action="store_true", help="mine each transaction at once")
    command.add_argument(
        "--model",
        choices=[model.SMOLLM],
        help="run text and embedding jobs on a real language model (`make model` installs it, and then the demo uses "
        "it); without it, the provider returns each input as its output",
    )
    for port in DEFAULTS.listening:
        command.add_argument(
            port.flag,
            type=_port,
            metavar="PORT",
            help=f"port of the {port.service} (default: {port.usual}, or a free one if that is in use)",
        )


def _add_state_dir(command: argparse.ArgumentParser) -> None:
    what = f"directory of the market's state (default: {DEFAULTS.state_dir})"
    command.add_argument("--state-dir", type=Path, default=DEFAULTS.state_dir, help=what)


def _seconds(text: str) -> int:
    return _between(text, 1, 3600)


def _chain_id(text: str) -> int:
    return _between(text, 1, 2**53 - 1)


def _whole(text: str) -> int:
    return _between(text, 0, 10**12)


def _address(text: str) -> bytes:
    try:
        return read_hex(text, 20, "an address")
    except Refused as refused:
        raise argparse.ArgumentTypeError(refused.message) from None


def _port(text: str) -> int:
    return _between(text, 1, 65535)


def _between(text: str, minimum: int, maximum: int) -> int:
    if not (text.isascii() and text.isdecimal()) or not minimum <= int(text) <= maximum:
        raise argparse.ArgumentTypeError(f"{text} is not a number from {minimum} to {maximum}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
