"""Run the commands of `coordinatord`.

`cli.py` imports this module only to run a command. Each command imports the database, the node's client and the server
when it needs them.
"""

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import structlog
from structlog.typing import Processor

from common.checks import check_json, check_table, wrong_names
from common.daemon.logs import set_up_logging, start_error_reporting
from common.daemon.process import RELEASE, Fatal, leaf_exceptions
from common.daemon.trace_log import TraceLog
from common.settings.listing import settings_json, settings_text
from common.text_table import grid_lines, hanging_text, terminal_columns
from common.tracing.export import exporting
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.run.config import Config, read_config, setting_rows, unknown_settings
from coordinatord.run.keys import key_rows, new_key, relayer_rows, relayer_table
from coordinatord.run.limits import Limits

if TYPE_CHECKING:
    from coordinatord.chain.relayer.budgets_sql import TopSpender

log = structlog.get_logger(__name__)

_SPENDER_HEADER: Final = ("signer", "kind", "gas, this hour", "gas, 24 hours")
_MAX_SPENDER_LINES: Final = 40
# Exit status that shells use for SIGINT.
_INTERRUPTED_STATUS: Final = 130


def spender_table(spenders: "Sequence[TopSpender]", columns: int | None = None) -> str:
    """Return the table of `coordinatord budgets`: one line for each signer and kind of op, the largest first."""
    if not spenders:
        return "no gas was spent in the last 24 hours"
    rows = [_SPENDER_HEADER] + [
        (_signer_name(s.signer), s.kind, f"{s.last_hour_gas:,}", f"{s.last_day_gas:,}") for s in spenders
    ]
    return "\n".join(grid_lines(rows, columns, right_aligned={2, 3}))


def spender_rows(spenders: "Sequence[TopSpender]") -> list[dict[str, object]]:
    return [
        {"signer": _signer_name(s.signer), "kind": s.kind, "last_hour": s.last_hour_gas, "last_day": s.last_day_gas}
        for s in spenders
    ]


def _print_lines(lines: Sequence[str]) -> None:
    columns = terminal_columns()
    for line in lines:
        print(hanging_text("", line, columns))


def _signer_name(signer: bytes) -> str:
    from coordinatord.chain.relayer.budgets_sql import ALL_NEWCOMERS  # noqa: PLC0415

    if signer == ALL_NEWCOMERS:
        return "all newcomers"
    return "0x" + signer.hex() if signer else "the coordinator"


async def _serve(config: Config, limits: Limits | None = None) -> None:
    from coordinatord.run import app  # noqa: PLC0415

    with exporting("coordinatord", TraceLog()):
        await app.run(config, limits)


async def _drain(config: Config) -> None:
    from coordinatord.run.drain import drain  # noqa: PLC0415

    await drain(config)


async def _migrate(config: Config) -> None:
    from coordinatord.run.dependencies import open_dependencies  # noqa: PLC0415
    from coordinatord.storage.database.migration import migrate  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        dependencies = await open_dependencies(config, stack)
        async with dependencies.database.connection_without_timeout() as connection:
            applied = await migrate(connection)
    print("\n".join(applied) if applied else "no migrations to apply")


async def _print_budgets(config: Config, *, as_json: bool) -> None:
    """Print the largest users of gas from the database, without a connection to the node."""
    from coordinatord.chain.relayer.budgets_sql import read_top_spenders  # noqa: PLC0415
    from coordinatord.storage.database.connections import open_database  # noqa: PLC0415

    database = open_database(config.database_url.reveal(), max_size=2)
    async with database as opened, opened.connection() as connection:
        spenders = await read_top_spenders(connection, _MAX_SPENDER_LINES)
    print(json.dumps(spender_rows(spenders), indent=2) if as_json else spender_table(spenders, terminal_columns()))


def record_build(release: str, unknown: Mapping[str, str | None]) -> None:
    """Set the metric of the running version, and log each variable that looks like a setting but is not one."""
    metrics.build_info.labels(release).set(1)
    for name, near in unknown.items():
        log.warning("unknown variable", name=name, nearest=near)


async def _print_relayers(config: Config, *, as_json: bool) -> None:
    """Print the relayer accounts from the database, without a connection to the node."""
    from coordinatord.chain.relayer.transactions_sql import read_account_usages  # noqa: PLC0415
    from coordinatord.run.signer import open_signer  # noqa: PLC0415
    from coordinatord.storage.database.connections import open_database  # noqa: PLC0415

    database = open_database(config.database_url.reveal(), max_size=2)
    async with open_signer(config) as signer, database as opened, opened.connection() as connection:
        uses = await read_account_usages(connection, config.addresses.chain_id)
    if as_json:
        print(json.dumps(relayer_rows(uses, signer.address), indent=2))
    else:
        _print_lines(relayer_table(uses, signer.address).splitlines())


async def _print_keys(config: Config, *, as_json: bool) -> None:
    """Print the public side of the keys in the settings, without a connection to the database or the node."""
    if as_json:
        print(json.dumps([{"use": use, "key": key} for use, key in key_rows(config)], indent=2))
    else:
        _print_lines([f"{use:<17} {key}" for use, key in key_rows(config)])


_COMMANDS: Final[dict[str, Callable[..., Awaitable[None]]]] = {
    "serve": _serve,
    "drain": _drain,
    "migrate": _migrate,
    "keys": _print_keys,
    "relayers": _print_relayers,
    "budgets": _print_budgets,
}


def run_command(command: str, **options: object) -> None:
    """Run one of `_COMMANDS` with the settings of the environment. Exit with 1 when the command fails."""
    task = partial(_COMMANDS[command], **options)
    try:
        config = read_config(os.environ)
        set_up_logging(config.log_level, *_error_reporting_processors(config))
        record_build(RELEASE, unknown_settings(os.environ))
        anyio.run(task, config, backend="asyncio", backend_options={"use_uvloop": True})
    except* (Fatal, Retryable, OSError) as errors:
        for error in leaf_exceptions(errors):
            print(f"coordinatord: {error}", file=sys.stderr)
        sys.exit(1)
    except* KeyboardInterrupt:  # Ctrl-C before the daemon handled signals
        sys.exit(_INTERRUPTED_STATUS)


def print_checks(as_json: bool) -> int:
    """Print the checks. Return the exit status: 1 when something is wrong."""
    from coordinatord.run.checks.examine import run_checks  # noqa: PLC0415

    set_up_logging("error")  # the table already shows what warnings would report
    rows = anyio.run(run_checks, os.environ, backend="asyncio", backend_options={"use_uvloop": True})
    print(check_json(rows) if as_json else check_table(rows, terminal_columns()))
    return 1 if wrong_names(rows) else 0


def print_settings(as_json: bool) -> int:
    """Print every setting. Return the exit status: 1 when a setting is invalid."""
    rows = setting_rows(os.environ)
    print(settings_json(rows) if as_json else settings_text(rows, terminal_columns()))
    return 1 if any(row.problem is not None for row in rows) else 0


def make_key(file: Path) -> None:
    """Create a key and print its address. Exit with 1 when the file cannot be created."""
    try:
        print(new_key(file))
    except Fatal as error:
        print(f"coordinatord: {error}", file=sys.stderr)
        sys.exit(1)


def _error_reporting_processors(config: Config) -> list[Processor]:
    if config.sentry_dsn is None:
        return []
    return [start_error_reporting(config.sentry_dsn.reveal(), config.sentry_environment, config.sentry_release)]
