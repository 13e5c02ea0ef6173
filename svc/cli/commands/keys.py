"""Wallet keys: made, shown. A key is never an argument: arguments are in the shell's history and in `ps`."""

from pathlib import Path

import click

from common.refusal import Refused
from common.scalars import hex_of
from svc.cli.exits import Exit
from svc.cli.wallet import wallet_of
from svc.keys import create_wallet


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("wallet.key"), help="The file to write."
)
def keygen(out: Path) -> Exit:
    """Create a wallet key file.

    An existing file is never overwritten: a lost key is lost money. Jobs are paid from the wallet's own balance of the
    payment token; the account needs no gas.

    \b
      svc keygen --out wallet.key
      export SVC_WALLET_KEY_FILE=$PWD/wallet.key
    """
    try:
        wallet = create_wallet(out)
    except FileExistsError:
        raise click.UsageError(f"{out} exists already; choose another file") from None
    except OSError as trouble:
        raise click.UsageError(f"{out}: {trouble.strerror}") from None
    click.echo(f"wallet key written to {out} (readable by you alone; back it up)", err=True)
    click.echo(hex_of(wallet.address))
    return Exit.DONE


@click.command()
@click.argument(
    "key", type=click.Path(path_type=Path, dir_okay=False), required=False, help="The key file, as keygen writes it."
)
def address(key: Path | None) -> Exit:
    """Show a wallet's address: of a key file, or of the key in the environment."""
    try:
        wallet = wallet_of(key)
    except Refused as wrong:
        click.echo(f"svc: {wrong}", err=True)
        return Exit.NO_KEY
    if wallet is None:
        raise click.UsageError("no key: name a file, or set SVC_WALLET_KEY or SVC_WALLET_KEY_FILE")
    click.echo(hex_of(wallet.address))
    return Exit.DONE
