"""`svc`: the client's command line."""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from common.refusal import Refused
from common.scalars import hex_of
from svc.keys import create_wallet, read_wallet


def main() -> None:
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except FileExistsError as taken:
        print(f"svc: {taken.filename} exists already; choose another file", file=sys.stderr)
    except OSError as broken:
        print(f"svc: {broken.filename}: {broken.strerror}", file=sys.stderr)
    except Refused as wrong:
        print(f"svc: {wrong}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="svc", description="Buy sealed compute jobs.")
    parser.add_argument("--version", action="version", version=version("sealed-job-coordinator"))
    commands = parser.add_subparsers(title="commands", required=True)

    keygen = commands.add_parser("keygen", help="create a wallet key", description="Create a wallet key file.")
    keygen.add_argument("--out", type=Path, default=Path("wallet.key"), help="the file to write (default: %(default)s)")
    keygen.set_defaults(run=_keygen)

    address = commands.add_parser("address", help="show a key's address", description="Show the address of a key file.")
    address.add_argument("key", type=Path, help="the key file")
    address.set_defaults(run=_address)
    return parser


def _keygen(options: argparse.Namespace) -> int:
    wallet = create_wallet(options.out)
    print(f"wallet key written to {options.out} (readable by you alone; back it up)")
    print(f"address {hex_of(wallet.address)}")
    return 0


def _address(options: argparse.Namespace) -> int:
    print(hex_of(read_wallet(options.key).address))
    return 0
