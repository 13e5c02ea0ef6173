"""Commands about wallet keys: make one, show its address.

A key is never an argument, because arguments are in the shell's history and in `ps`.
"""

import os
from pathlib import Path

import click

from common.refusal import Refused
from common.scalars import hex_of
from svc.cli.connection import ask_password
from svc.cli.exit_codes import Exit
from svc.key_files import create_wallet
from svc.profiles import with_profile
from svc.wallets import PASSWORD_FILE, password_of, signer_of


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("wallet.key"), help="The file to write."
)
@click.option("--encrypted", is_flag=True, help="A JSON keystore, behind a password that is asked for.")
def keygen(out: Path, encrypted: bool) -> Exit:
    """Create a wallet key file.

    An existing file is never overwritten: a lost key is lost money. Jobs are paid from the wallet's own balance of the
    payment token; the account needs no gas. An encrypted one asks for its password at each use, or reads it from the
    file that SVC_KEYSTORE_PASSWORD_FILE names.

    \b
      svc keygen --out wallet.key
      export SVC_WALLET_KEY_FILE=$PWD/wallet.key
      svc keygen --encrypted --out wallet.json
      export SVC_KEYSTORE=$PWD/wallet.json
    """
    try:
        if out.exists():  # before a password is asked for; the writing itself overwrites nothing
            raise FileExistsError
        password = _new_password(out) if encrypted else None
        wallet = create_wallet(out, password)
    except FileExistsError:
        raise click.UsageError(f"{out} exists already; choose another file") from None
    except OSError as error:
        raise click.UsageError(f"{out}: {error.strerror}") from None
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    kept = "behind its password" if encrypted else "readable by you alone"
    click.echo(f"wallet key written to {out} ({kept}; back it up)", err=True)
    click.echo(hex_of(wallet.address))
    return Exit.DONE


def _new_password(out: Path) -> str:
    """Of SVC_KEYSTORE_PASSWORD_FILE where it is set, else asked for twice."""
    if os.environ.get(PASSWORD_FILE):
        return password_of(out, os.environ, None)
    password: str = click.prompt(f"Password for {out}", hide_input=True, confirmation_prompt=True, err=True)
    return password


@click.command()
@click.argument(
    "key", type=click.Path(path_type=Path, dir_okay=False), required=False, help="The key file, as keygen writes it."
)
def address(key: Path | None) -> Exit:
    """Show a wallet's address: of a key file or keystore, or of the wallet that the settings name."""
    try:
        signer = signer_of(with_profile(os.environ), key, ask_password)
    except Refused as wrong:
        click.echo(f"svc: {wrong}", err=True)
        return Exit.NO_KEY
    if signer is None:
        raise click.UsageError("no wallet: name a key file, or set SVC_WALLET_KEY_FILE, SVC_KEYSTORE or another way")
    click.echo(hex_of(signer.address))
    return Exit.DONE
