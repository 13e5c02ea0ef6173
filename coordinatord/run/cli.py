"""The command line: `coordinatord serve`, `migrate`, `check`, `keys`, `relayers`, `budgets`, `new-key`.

Settings come from the environment alone.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from common.daemon.process import RELEASE
from common.daemon.secrets import hide_memory
from coordinatord.run.config import variables

_COMMANDS: Final = {
    "serve": "run the coordinator until SIGTERM",
    "migrate": "bring the database up to date, then exit",
    "keys": "print the public side of every key that is set, then exit",
    "relayers": "print every account that relayed, and what of it is pending, then exit",
    "budgets": "print whose ops used most gas in the last 24 hours, then exit",
}
_CHECK: Final = "look at everything that a start needs, print what is right and what is wrong, then exit"


def main() -> None:
    """The exit status is 0 after an orderly stop, 1 when the daemon cannot run or something is wrong, 2 for a wrong
    command line."""
    arguments = _parser().parse_args()
    hide_memory()  # before a key is read
    from coordinatord.run import commands  # noqa: PLC0415

    match arguments.command:
        case "check":
            sys.exit(commands.check(arguments.json))
        case "new-key":
            commands.make_key(arguments.file)
        case command:
            commands.run(command)


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
    for name, about in _COMMANDS.items():
        commands.add_parser(name, help=about, description=about)
    check = commands.add_parser("check", help=_CHECK, description=_CHECK)
    check.add_argument("--json", action="store_true", help="for programs: a list of rows")
    about = "make a private key, in a file that only its owner may read, and print its address"
    made = commands.add_parser("new-key", help=about, description=about)
    made.add_argument("file", type=Path, metavar="FILE", help="must not be there yet")
    # Listed here, run by `__main__`, which imports none of the daemon for it.
    commands.add_parser("market", help="deploy, verify and administer a market's contracts: `market --help`")
    return parser
