"""Open the configured signer of the relayer's account."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
from anyio import to_thread

from common.secp256k1 import Wallet
from coordinatord.chain.relayer.signers import (
    MAX_PARALLEL_SIGNATURES,
    AccountSigner,
    WalletSigner,
    http_signer,
    program_signer,
)
from coordinatord.chain.rpc.client import open_transport
from coordinatord.chain.signing.keystores import load_keystore
from coordinatord.chain.signing.signers import parse_signing_program
from coordinatord.run.config import Config

# The signing program receives only these environment variables, none of which holds a secret.
_PASSED_VARIABLES: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "CREDENTIALS_DIRECTORY",
)


@asynccontextmanager
async def open_signer(config: Config) -> AsyncIterator[AccountSigner]:
    """Open the signer that the configuration sets: a key, a keystore, a signing URL or a signing program."""
    if config.relayer_key is not None:
        yield WalletSigner(Wallet(bytes.fromhex(config.relayer_key.reveal())))
    elif config.relayer_keystore is not None and config.relayer_keystore_password is not None:
        password = config.relayer_keystore_password
        path = Path(config.relayer_keystore)
        key = await to_thread.run_sync(load_keystore, path, password.reveal, "RELAYER_KEYSTORE")
        yield WalletSigner(key.wallet)
    else:
        account, timeout_s = str(config.relayer_account), config.limits.signer_timeout_s
        address = bytes.fromhex(account[2:])
        if config.relayer_signer_url is not None:
            url = config.relayer_signer_url.reveal()
            async with open_transport(url, connections=MAX_PARALLEL_SIGNATURES, timeout_s=timeout_s) as transport:
                yield http_signer(transport, address, account, timeout_s)
        else:
            command = parse_signing_program(str(config.relayer_signer_command), account, "RELAYER_SIGNER_COMMAND")
            environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
            program = attrs.evolve(command, timeout_s=timeout_s, environment=environment)
            yield program_signer(program, address, timeout_s)
