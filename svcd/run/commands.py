"""Commands of `svcd`. Each returns the exit status.

`cli.py` imports this module only to run a command, so that `--help` and `--version` stay fast.
"""

import argparse
import sys
from collections.abc import Callable
from getpass import getpass
from pathlib import Path
from typing import Final

import trio

from common.checks import CheckRow, check_json, check_table, wrong_names
from common.daemon.logs import set_up_logging
from common.daemon.process import Fatal
from common.scalars import hex_of
from common.text_table import terminal_columns
from svcd.base.keys import create_identity
from svcd.config import read_config, read_settings
from svcd.operator.check import examine
from svcd.operator.earnings import read_earnings
from svcd.operator.earnings_report import as_csv, as_table
from svcd.operator.identity import publish_identity
from svcd.operator.register import RegisterOptions, register
from svcd.operator.setup import ask_at_terminal, set_up
from svcd.operator.status import look
from svcd.operator.trial import told_of, try_model
from svcd.operator.written_config import SetupOptions
from svcd.run import app

_LEFT_TO_DO: Final = 3  # nothing failed, and the provider may not work yet


def _init(options: argparse.Namespace) -> int:
    set_up_logging("error")
    flags = {name: value for name, value in vars(options).items() if name not in ("command", "password_file")}
    flags |= {"servers": tuple(options.servers), "models": tuple(options.models)}
    set_up(SetupOptions(**flags), ask_at_terminal, print, lambda: _new_password(options.password_file))
    return 0


def _new_password(file: Path | None) -> str:
    """Return the new password. It must be ASCII, as the daemon requires when it reads the password file."""
    if file is not None:
        try:
            return file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise Fatal(f"--password-file {file} cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise Fatal(f"--password-file {file} must hold a password in ASCII characters") from None
    if not sys.stdin.isatty():
        raise Fatal("--password-file must be given: there is no terminal to ask at")
    password = getpass("    password of the new keystore: ")
    if password != getpass("    once more: "):
        raise Fatal("the two passwords differ; no key was made")
    if not password.isascii():
        raise Fatal("the password must be in ASCII characters; no key was made")
    return password


def _register(options: argparse.Namespace) -> int:
    set_up_logging("error")
    config = read_config(options.config)

    def confirmed() -> bool:
        if options.yes or not sys.stdin.isatty():
            return bool(options.yes)
        return input("send it? [y/N]: ").strip().lower() in ("y", "yes")

    chosen = RegisterOptions(options.rpc_url, options.dry_run, confirmed, options.wait)
    return 0 if trio.run(register, config, chosen, print) or options.dry_run else _LEFT_TO_DO


def _try(options: argparse.Namespace) -> int:
    set_up_logging("error")
    tried = trio.run(try_model, read_config(options.config), options.model, options.text, options.units_out)
    print(tried.answer)
    print(told_of(tried))
    return 0


def _earnings(options: argparse.Namespace) -> int:
    set_up_logging("error")
    told = trio.run(read_earnings, read_config(options.config), options.days)
    print(as_csv(told) if options.csv else as_table(told, terminal_columns()), end="" if options.csv else "\n")
    return 0


def _serve(options: argparse.Namespace) -> int:
    config = read_config(options.config)
    set_up_logging(config.log_level)
    trio.run(app.run, config)
    return 0


def _check(options: argparse.Namespace) -> int:
    config = read_config(options.config)
    set_up_logging("warning")  # the table has the details
    return _print(trio.run(examine, config), options.json)


def _identity(options: argparse.Namespace) -> int:
    config = read_config(options.config)
    set_up_logging("warning")
    print(trio.run(publish_identity, config))
    return 0


def _status(options: argparse.Namespace) -> int:
    file = read_settings(options.config)
    return _print(look(file.state_directory, file.metrics), options.json)


def _print(rows: list[CheckRow], as_json: bool) -> int:
    print(check_json(rows) if as_json else check_table(rows, terminal_columns()))
    return 1 if wrong_names(rows) else 0


def _keygen(options: argparse.Namespace) -> int:
    identity = create_identity(options.out)
    print(f"keys written to {options.out.absolute()} (readable by you alone; back them up)")
    print(f"operator {hex_of(identity.operator)}")
    print(f"box key  {hex_of(identity.box_key.raw)}")
    return 0


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "run": _serve,
    "check": _check,
    "identity": _identity,
    "status": _status,
    "init": _init,
    "register": _register,
    "try": _try,
    "earnings": _earnings,
    "keygen": _keygen,
}
