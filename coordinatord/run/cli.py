"""Command line of `coordinatord`. Settings come from the environment and from systemd credentials."""

import argparse
import sys
from pathlib import Path
from typing import Final

from common.daemon.process import RELEASE
from common.daemon.secrets import hide_memory

_COMMANDS: Final = {
    "serve": "run the coordinator until SIGTERM",
    "migrate": "bring the database up to date",
    "keys": "print the public side of every key that is set",
    "relayers": "print every account that relayed, and its pending transactions",
    "drain": "follow a replaced relayer account until its key is no longer needed",
    "budgets": "print the signers whose ops used most gas in the last 24 hours",
}
_TABLES: Final = {
    "settings": "print every setting: value, source, meaning, range and default",
    "check": "check everything that a start needs",
}


def main() -> None:
    """The exit status is 0 after an orderly stop, 1 when the daemon cannot run or something is wrong, 2 for a wrong
    command line."""
    arguments = _parser().parse_args()
    hide_memory()  # before a key is read
    from coordinatord.run import commands  # noqa: PLC0415

    match arguments.command:
        case "settings":
            try:
                status = commands.settings(arguments.json)
            except BrokenPipeError:  # the reader closed the pipe
                sys.stdout = None  # the interpreter would flush it again
                status = 0
            sys.exit(status)
        case "check":
            sys.exit(commands.check(arguments.json))
        case "new-key":
            commands.make_key(arguments.file)
        case command:
            commands.run(command)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="coordinatord",
        description="A coordinator for sealed compute jobs.",
        epilog="Settings are environment variables. `coordinatord settings` prints them.",
    )
    parser.add_argument("--version", action="version", version=RELEASE)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, about in _COMMANDS.items():
        commands.add_parser(name, help=about, description=about)
    for name, about in _TABLES.items():
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    about = "create a private key in a new file that only its owner can read, and print its address"
    made = commands.add_parser("new-key", help=about, description=about)
    made.add_argument("file", type=Path, metavar="FILE", help="path of the new file")
    # Listed here, run by `__main__`, which imports none of the daemon for it.
    commands.add_parser("market", help="deploy, verify and administer a market's contracts: `market --help`")
    return parser
