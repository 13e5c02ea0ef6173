"""Signatures of the relayer's account: the signer that the configuration names, and many signatures in order."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import anyio
import attrs
from anyio import to_thread

from common.daemon.process import Fatal, Secret
from common.secp256k1 import Wallet
from common.transactions import SignedTransaction, Transaction
from coordinatord.chain.keystores import from_keystore, read_private
from coordinatord.chain.rpc import open_transport
from coordinatord.chain.signers import from_command
from coordinatord.config import Config
from coordinatord.relayer.outside_signer import SignerAway, by_http, by_program

_AT_ONCE: Final = 8  # signatures asked for at a time
# What a program of the operator's gets of the environment: nothing that holds a secret of ours.
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "CREDENTIALS_DIRECTORY")


class AccountSigner(Protocol):
    """Signs as the relayer's account."""

    @property
    def address(self) -> bytes: ...
    async def sign(self, transaction: Transaction) -> SignedTransaction: ...


@attrs.frozen(slots=True)
class WalletSigner:
    """A key in this process."""

    _wallet: Wallet = attrs.field(repr=False)

    @property
    def address(self) -> bytes:
        return self._wallet.address

    async def sign(self, transaction: Transaction) -> SignedTransaction:
        return transaction.sign(self._wallet)


async def sign_in_order(
    signer: AccountSigner, transactions: Sequence[Transaction]
) -> tuple[list[SignedTransaction], SignerAway | None]:
    """(signatures of the first ones, why there are no more). Some are asked for at once; nothing behind one that failed
    counts, so that nonces have no gap."""
    signed: list[SignedTransaction] = []
    for first in range(0, len(transactions), _AT_ONCE):
        found = await _sign_together(signer, transactions[first : first + _AT_ONCE])
        for answer in found:
            if isinstance(answer, SignerAway):
                return signed, answer
            signed.append(answer)
    return signed, None


async def _sign_together(
    signer: AccountSigner, transactions: Sequence[Transaction]
) -> list[SignedTransaction | SignerAway]:
    if isinstance(signer, WalletSigner):  # no task is worth a key in this process
        return [await signer.sign(transaction) for transaction in transactions]
    found: dict[int, SignedTransaction | SignerAway] = {}

    async def one(place: int, transaction: Transaction) -> None:
        try:
            found[place] = await signer.sign(transaction)
        except SignerAway as away:
            found[place] = away

    async with anyio.create_task_group() as tasks:
        for place, transaction in enumerate(transactions):
            tasks.start_soon(one, place, transaction)
    return [found[place] for place in range(len(transactions))]


@asynccontextmanager
async def open_signer(config: Config) -> AsyncIterator[AccountSigner]:
    """The one signer that the configuration names."""
    if config.relayer_key is not None:
        yield WalletSigner(Wallet(bytes.fromhex(config.relayer_key.reveal())))
    elif config.relayer_keystore is not None:
        password = partial(_password, config.relayer_keystore_password, config.relayer_keystore_password_file)
        path = Path(config.relayer_keystore)
        key = await to_thread.run_sync(from_keystore, path, password, "RELAYER_KEYSTORE")
        yield WalletSigner(key.wallet)
    else:
        account, seconds = str(config.relayer_account), config.relayer_signer_timeout_s
        address = bytes.fromhex(account[2:])
        if config.relayer_signer_url is not None:
            url = config.relayer_signer_url.reveal()
            async with open_transport(url, connections=_AT_ONCE, patience=seconds) as transport:
                yield by_http(transport, address, account, seconds)
        else:
            command = from_command(str(config.relayer_signer_command), account, "RELAYER_SIGNER_COMMAND")
            environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            yield by_program(attrs.evolve(command, seconds=seconds, environment=environment), address, seconds)


def _password(given: Secret | None, file: str | None) -> str:
    if given is not None:
        return given.reveal()
    if file is None:
        raise Fatal("RELAYER_KEYSTORE needs RELAYER_KEYSTORE_PASSWORD or RELAYER_KEYSTORE_PASSWORD_FILE")
    return read_private(Path(file), "RELAYER_KEYSTORE_PASSWORD_FILE").rstrip("\r\n")
