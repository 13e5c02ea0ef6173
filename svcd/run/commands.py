"""Implement the commands of `svcd`. Each function returns the exit status.

`cli.py` imports this module only to run a command, so that `--help` and `--version` stay fast.
"""

import json
import sys
from getpass import getpass
from pathlib import Path
from typing import Any, Final

import trio

from common.checks import CheckRow, check_json, check_table, wrong_names
from common.daemon.logs import set_up_logging
from common.daemon.process import Fatal
from common.daemon.trace_log import TraceLog
from common.scalars import hex_of
from common.text_table import terminal_columns
from common.tracing.export import exporting
from svcd.base.keys import create_identity
from svcd.config import read_config, read_settings
from svcd.operator.check import run_checks
from svcd.operator.config_text import SetupOptions
from svcd.operator.earnings import read_earnings
from svcd.operator.earnings_report import earnings_csv, earnings_records, earnings_table
from svcd.operator.identity import publish_identity
from svcd.operator.register import RegisterOptions
from svcd.operator.register import register as register_provider
from svcd.operator.setup import prompt_at_terminal, set_up
from svcd.operator.status import check_status
from svcd.operator.trial import trial_report, try_model
from svcd.run import app

_EXIT_NOT_READY: Final = 3  # nothing failed, but the provider cannot work yet


def init(password_file: Path | None, **options: Any) -> int:
    set_up_logging("error")
    set_up(SetupOptions(**options), prompt_at_terminal, print, lambda: _read_new_password(password_file))
    return 0


def _read_new_password(file: Path | None) -> str:
    """Read the new keystore's password. Only ASCII is allowed, because the daemon reads password files as ASCII."""
    if file is not None:
        try:
            return file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise Fatal(f"--password-file {file} cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise Fatal(f"--password-file {file} must contain a password in ASCII characters") from None
    if not sys.stdin.isatty():
        raise Fatal("--password-file must be given: there is no terminal to prompt at")
    password = getpass("    password of the new keystore: ")
    if password != getpass("    repeat the password: "):
        raise Fatal("the two passwords differ; no key was created")
    if not password.isascii():
        raise Fatal("the password must be in ASCII characters; no key was created")
    return password


def register(path: Path, rpc_url: str | None, wait_seconds: float | None, *, dry_run: bool, yes: bool) -> int:
    set_up_logging("error")
    config = read_config(path)

    def confirm() -> bool:
        if yes or not sys.stdin.isatty():
            return yes
        return input("send this transaction? [y/N]: ").strip().lower() in ("y", "yes")

    options = RegisterOptions(rpc_url, dry_run, confirm, wait_seconds)
    return 0 if trio.run(register_provider, config, options, print) or dry_run else _EXIT_NOT_READY


def try_(path: Path, model: str, text: str, units_out: int | None) -> int:
    set_up_logging("error")
    result = trio.run(try_model, read_config(path), model, text, units_out)
    print(result.answer)
    print(trial_report(result))
    return 0


def earnings(path: Path, days: int, *, as_csv: bool, as_json: bool) -> int:
    set_up_logging("error")
    report = trio.run(read_earnings, read_config(path), days)
    if as_json:
        print(json.dumps(earnings_records(report), indent=2))
    elif as_csv:
        print(earnings_csv(report), end="")
    else:
        print(earnings_table(report, terminal_columns()))
    return 0


def serve(path: Path) -> int:
    config = read_config(path)
    set_up_logging(config.log_level)
    with exporting("svcd", TraceLog()):
        trio.run(app.run, config)
    return 0


def check(path: Path, as_json: bool) -> int:
    config = read_config(path)
    set_up_logging("warning")  # the table has the details
    return _print_checks(trio.run(run_checks, config), as_json)


def identity(path: Path) -> int:
    config = read_config(path)
    set_up_logging("warning")
    print(trio.run(publish_identity, config))
    return 0


def status(path: Path, as_json: bool) -> int:
    file = read_settings(path)
    return _print_checks(check_status(file.state_directory, file.metrics), as_json)


def keygen(folder: Path) -> int:
    created = create_identity(folder)
    print(f"keys written to {folder.absolute()} (readable by you alone; back them up)")
    print(f"operator {hex_of(created.operator)}")
    print(f"box key  {hex_of(created.box_key.raw)}")
    return 0


def _print_checks(rows: list[CheckRow], as_json: bool) -> int:
    print(check_json(rows) if as_json else check_table(rows, terminal_columns()))
    return 1 if wrong_names(rows) else 0
