"""`svcd`: the provider's command line."""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from common.scalars import hex_of
from svcd.keys import BOX_FILE, WALLET_FILE, create_identity


def main() -> None:
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except FileExistsError as taken:
        print(f"svcd: {taken.filename} exists already; choose another directory", file=sys.stderr)
    except OSError as broken:
        print(f"svcd: {broken.filename}: {broken.strerror}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="svcd", description="Provide compute to the market of sealed jobs.")
    parser.add_argument("--version", action="version", version=version("sealed-job-coordinator"))
    commands = parser.add_subparsers(title="commands", required=True)

    keygen = commands.add_parser(
        "keygen", help="create the provider's keys", description=f"Create {WALLET_FILE} and {BOX_FILE} in a directory."
    )
    keygen.add_argument("--out", type=Path, default=Path(), help="the directory (default: this one)")
    keygen.set_defaults(run=_keygen)
    return parser


def _keygen(options: argparse.Namespace) -> int:
    identity = create_identity(options.out)
    print(f"keys written to {options.out.absolute()} (readable by you alone; back them up)")
    print(f"operator {hex_of(identity.operator)}")
    print(f"box key  {hex_of(identity.box_key.raw)}")
    return 0
