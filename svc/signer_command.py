"""Wallets behind a program that signs: a hardware wallet's tool, an agent, a service's client.

    SVC_SIGNER_COMMAND         the program, with its arguments
    SVC_WALLET_ADDRESS         the account that it signs for; every signature is checked to be its own
    SVC_SIGNER_DETERMINISTIC   1: it signs as RFC 6979 has it

Its standard input is EIP-712 JSON, its standard output a signature: 65 bytes as 0x-hex.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

import attrs

from common.refusal import Refused
from common.scalars import read_hex
from svc.errors import SigningFailed
from svc.signers import RemoteSigner, Signer

COMMAND: Final = "SVC_SIGNER_COMMAND"
ADDRESS: Final = "SVC_WALLET_ADDRESS"
DETERMINISTIC: Final = "SVC_SIGNER_DETERMINISTIC"
_PATIENCE: Final = 300.0  # seconds: somebody may have to find the device and press its button


@attrs.frozen
class SignerCommand:
    """A program that reads EIP-712 JSON (as eth_signTypedData_v4 takes it) and prints a signature in hex. It is run
    without a shell, and what it says on standard error is seen."""

    words: tuple[str, ...]

    def sign(self, typed_data: dict[str, Any]) -> str:
        try:
            ran = subprocess.run(  # noqa: S603 - the user's own setting
                self.words,
                input=json.dumps(typed_data).encode(),
                stdout=subprocess.PIPE,
                timeout=_PATIENCE,
                check=False,
            )
        except OSError as error:
            raise SigningFailed(f"{COMMAND}: {self.words[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise SigningFailed(f"{COMMAND}: {self.words[0]} gave no signature within {_PATIENCE:g} s") from None
        if ran.returncode:
            raise SigningFailed(f"{COMMAND}: {self.words[0]} ended with {ran.returncode} and signed nothing")
        answer = ran.stdout.decode("ascii", "replace").strip()
        try:
            read_hex(answer, 65, COMMAND)
        except Refused:
            raise SigningFailed(f"{COMMAND}: {self.words[0]} must print a signature: 65 bytes as 0x-hex") from None
        return answer


def signer_by_command(environment: Mapping[str, str]) -> Signer:
    posix = sys.platform != "win32"  # where backslashes are parts of paths
    try:
        words = tuple(word if posix else word.strip('"') for word in shlex.split(environment[COMMAND], posix=posix))
    except ValueError as wrong:
        raise Refused(f"{COMMAND} must be a command line: {wrong}", COMMAND) from None
    if not words:
        raise Refused(f"{COMMAND} must name a program", COMMAND)
    address = environment.get(ADDRESS)
    if not address:
        raise Refused(f"{ADDRESS} must be the address that {COMMAND} signs for: each signature is checked", ADDRESS)
    deterministic = environment.get(DETERMINISTIC, "").strip().lower() in {"1", "true", "yes", "on"}
    return RemoteSigner(
        read_hex(address, 20, ADDRESS), by_typed_data=SignerCommand(words).sign, deterministic=deterministic
    )
