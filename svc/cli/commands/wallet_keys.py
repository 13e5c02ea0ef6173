"""Commands of wallet keys: create a key and show its address.

A key is never an argument, because arguments are in the shell's history and in `ps`.
"""

import os
from pathlib import Path

import click

from common.refusal import Refused
from common.scalars import hex_of
from svc.cli.connection import ask_password
from svc.cli.exit_codes import ExitCode
from svc.key_files import create_wallet
from svc.profiles import read_variables
from svc.wallets import PASSWORD_FILE_VARIABLE, read_password, read_signer


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("wallet.key"), help="File to write."
)
@click.option("--encrypted", is_flag=True, help="Write a JSON keystore, encrypted with a password.")
def keygen(out: Path, encrypted: bool) -> ExitCode:
    """Create a wallet key file.

    An existing file is never overwritten. Jobs are paid from the wallet's balance of the payment token; the account
    needs no gas. For an encrypted key, each command prompts for the password or reads SVC_KEYSTORE_PASSWORD_FILE.

    \b
      svc keygen --out wallet.key
      export SVC_WALLET_KEY_FILE=$PWD/wallet.key
      svc keygen --encrypted --out wallet.json
      export SVC_WALLET_KEY_FILE=$PWD/wallet.json
    """
    try:
        if out.exists():  # before asking for a password
            raise FileExistsError
        password = _new_password(out) if encrypted else None
        wallet = create_wallet(out, password)
    except FileExistsError:
        raise click.UsageError(f"{out} already exists; choose another file") from None
    except OSError as error:
        raise click.UsageError(f"cannot write {out}: {error.strerror}") from None
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    protection = "encrypted" if encrypted else "readable only by you"
    click.echo(f"wallet key written to {out} ({protection}; back it up)", err=True)
    click.echo(hex_of(wallet.address))
    return ExitCode.DONE


def _new_password(out: Path) -> str:
    """Return the password of SVC_KEYSTORE_PASSWORD_FILE, or prompt for it twice."""
    if os.environ.get(PASSWORD_FILE_VARIABLE):
        return read_password(out, os.environ[PASSWORD_FILE_VARIABLE], None)
    password: str = click.prompt(f"Password for {out}", hide_input=True, confirmation_prompt=True, err=True)
    return password


@click.command()
@click.argument(
    "key",
    type=click.Path(path_type=Path, dir_okay=False),
    required=False,
    help="Key file or keystore (default: the configured wallet).",
)
def address(key: Path | None) -> ExitCode:
    """Show the address of a key file or of the wallet."""
    try:
        signer = read_signer(read_variables(os.environ), key, ask_password)
    except Refused as error:
        click.echo(f"svc: {error}", err=True)
        return ExitCode.NO_KEY
    if signer is None:
        raise click.UsageError("no wallet: give a key file, or set SVC_WALLET_KEY_FILE or SVC_SIGNER_COMMAND")
    click.echo(hex_of(signer.address))
    return ExitCode.DONE
