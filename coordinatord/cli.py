"""The command line: `coordinatord serve`, `migrate`, `check`, `keys`, `relayers`, `budgets`, `new-key`.

Settings come from the environment alone.
"""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import structlog
from structlog.typing import Processor

from common.daemon.logs import error_reporting, set_up_logging
from common.daemon.process import RELEASE, Fatal, hide_memory
from common.secp256k1 import Wallet
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.checkup.examine import examine, unknown_settings
from coordinatord.checkup.rows import check_json, check_table
from coordinatord.config import Config, read_config, variables
from coordinatord.database.connections import open_database
from coordinatord.database.migrate import migrate
from coordinatord.dependencies import open_dependencies
from coordinatord.keys import key_lines, new_key, relayer_table
from coordinatord.relayer.budgets_sql import ALL_NEWCOMERS, TopSpender, top_spenders
from coordinatord.relayer.signers import open_signer
from coordinatord.relayer.transactions_sql import account_uses

log = structlog.get_logger(__name__)

_HEAD: Final = ("signer", "kind", "gas, this hour", "gas, 24 hours")


def spender_table(spenders: Sequence[TopSpender]) -> str:
    """Table of `coordinatord budgets`: one line for each signer and kind of op, the largest first."""
    if not spenders:
        return "no gas was spent in the last 24 hours"
    rows = [_HEAD] + [(_name(s.signer), s.kind, f"{s.last_hour:,}", f"{s.last_day:,}") for s in spenders]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
    )


def _name(signer: bytes) -> str:
    if signer == ALL_NEWCOMERS:
        return "all newcomers"
    return "0x" + signer.hex() if signer else "the coordinator"


_SPENDERS: Final = 40  # lines of the table


async def _serve(config: Config) -> None:
    from coordinatord import app  # noqa: PLC0415 - a quarter of the imports, which the other commands do without

    await app.run(config)


async def _migrate(config: Config) -> None:
    async with AsyncExitStack() as stack:
        dependencies = await open_dependencies(config, stack)
        async with dependencies.database.unhurried() as connection:
            applied = await migrate(connection)
    print("\n".join(applied) if applied else "nothing to apply")


async def _budgets(config: Config) -> None:
    """From the database alone: it answers while the node is away."""
    database = open_database(config.database_url.reveal(), smallest=1, largest=2)
    async with database as opened, opened.connection() as connection:
        print(spender_table(await top_spenders(connection, _SPENDERS)))


def note_build(release: str, unknown: Mapping[str, str | None]) -> None:
    """What runs, for the metrics, and a line for each variable that looks like a setting and is none."""
    metrics.build_info.labels(release).set(1)
    metrics.unknown_variables.set(len(unknown))
    for name, near in unknown.items():
        log.warning("unknown variable", name=name, nearest=near)


async def _relayers(config: Config) -> None:
    """From the database alone, too: a rotation is watched while the node is away as well."""
    former = [Wallet(bytes.fromhex(key.reveal())).address for key in config.former_relayer_keys]
    database = open_database(config.database_url.reveal(), smallest=1, largest=2)
    async with open_signer(config) as signer, database as opened, opened.connection() as connection:
        print(relayer_table(await account_uses(connection, config.addresses.chain_id), signer.address, former))


async def _keys(config: Config) -> None:
    """From the settings alone."""
    print("\n".join(key_lines(config)))


_COMMANDS: dict[str, tuple[str, Callable[[Config], Awaitable[None]]]] = {
    "serve": ("run the coordinator until SIGTERM", _serve),
    "migrate": ("bring the database up to date, then exit", _migrate),
    "keys": ("print the public side of every key that is set, then exit", _keys),
    "relayers": ("print every account that relayed, and what of it is pending, then exit", _relayers),
    "budgets": ("print whose ops used most gas in the last 24 hours, then exit", _budgets),
}


_CHECK: Final = "look at everything that a start needs, print what is right and what is wrong, then exit"


def _check(as_json: bool) -> int:
    """The exit status: 1 when something is wrong."""
    set_up_logging("error")  # the table tells what a warning would
    rows = anyio.run(examine, os.environ, backend="asyncio", backend_options={"use_uvloop": True})
    print(check_json(rows) if as_json else check_table(rows))
    return 1 if any(row.right is False for row in rows) else 0


def main() -> None:
    """The exit status is 0 after an orderly stop, 1 when the daemon cannot run or something is wrong, 2 for a wrong
    command line."""
    arguments = _parser().parse_args()
    hide_memory()  # before a key is read
    if arguments.command == "check":
        sys.exit(_check(arguments.json))
    if arguments.command == "new-key":
        print(_or_exit(partial(new_key, arguments.file)))
        return
    _, command = _COMMANDS[arguments.command]
    try:
        config = read_config(os.environ)
        set_up_logging(config.log_level, *_reporting(config))
        note_build(RELEASE, unknown_settings(os.environ))
        anyio.run(command, config, backend="asyncio", backend_options={"use_uvloop": True})
    except* (Fatal, Retryable, OSError) as errors:
        for error in _leaves(errors):
            print(f"coordinatord: {error}", file=sys.stderr)
        sys.exit(1)


def _or_exit(do: Callable[[], str]) -> str:
    try:
        return do()
    except Fatal as error:
        print(f"coordinatord: {error}", file=sys.stderr)
        sys.exit(1)


def _reporting(config: Config) -> list[Processor]:
    if config.sentry_dsn is None:
        return []
    return [error_reporting(config.sentry_dsn.reveal(), config.sentry_environment, config.sentry_release)]


def _parser() -> argparse.ArgumentParser:
    settings = "\n".join(f"  {field.metadata['variable']:26} {field.metadata['about']}" for field in variables())
    parser = argparse.ArgumentParser(
        prog="coordinatord",
        description="A coordinator for sealed compute jobs.",
        epilog=f"environment variables (besides ADDRESSES_FILE or ADDRESSES_JSON):\n{settings}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=RELEASE)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (about, _) in _COMMANDS.items():
        commands.add_parser(name, help=about, description=about)
    check = commands.add_parser("check", help=_CHECK, description=_CHECK)
    check.add_argument("--json", action="store_true", help="for programs: a list of rows")
    about = "make a private key, in a file that only its owner may read, and print its address"
    made = commands.add_parser("new-key", help=about, description=about)
    made.add_argument("file", type=Path, metavar="FILE", help="must not be there yet")
    # Listed here, run by `__main__`, which imports none of the daemon for it.
    commands.add_parser("market", help="deploy, verify and administer a market's contracts: `market --help`")
    return parser


def _leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    """The exceptions themselves, out of however many task groups they came through."""
    leaves: list[BaseException] = []
    for inner in group.exceptions:
        leaves += _leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return leaves
