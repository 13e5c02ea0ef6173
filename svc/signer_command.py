"""Sign with an external program, for example the tool of a hardware wallet.

    SVC_SIGNER_COMMAND    the program and its arguments
    SVC_WALLET_ADDRESS    the account that the program signs for; every signature is checked

The program reads EIP-712 JSON from standard input and writes the signature to standard output: 65 bytes as 0x-hex.
"""

import json
import shlex
import subprocess
import sys
from typing import Any, Final

import attrs

from common.refusal import Refused
from common.scalars import read_hex
from svc.errors import SigningFailed
from svc.signers import RemoteSigner, Signer

COMMAND_VARIABLE: Final = "SVC_SIGNER_COMMAND"
ADDRESS_VARIABLE: Final = "SVC_WALLET_ADDRESS"
_SIGNING_TIMEOUT_S: Final = 300.0  # the user may have to press a button on a device


@attrs.frozen
class SignerCommand:
    """Program that signs. The program runs without a shell, and its standard error goes to the terminal."""

    command: tuple[str, ...]

    def sign(self, typed_data: dict[str, Any]) -> str:
        try:
            completed = subprocess.run(  # noqa: S603 - the user's own setting
                self.command,
                input=json.dumps(typed_data).encode(),
                stdout=subprocess.PIPE,
                timeout=_SIGNING_TIMEOUT_S,
                check=False,
            )
        except OSError as error:
            raise SigningFailed(f"{COMMAND_VARIABLE}: {self.command[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise SigningFailed(
                f"{COMMAND_VARIABLE}: {self.command[0]} returned no signature within {_SIGNING_TIMEOUT_S:g} s"
            ) from None
        if completed.returncode:
            raise SigningFailed(f"{COMMAND_VARIABLE}: {self.command[0]} failed with exit code {completed.returncode}")
        answer = completed.stdout.decode("ascii", "replace").strip()
        try:
            read_hex(answer, 65, COMMAND_VARIABLE)
        except Refused:
            raise SigningFailed(
                f"{COMMAND_VARIABLE}: {self.command[0]} must print a signature: 65 bytes as 0x-hex"
            ) from None
        return answer


def signer_from_command(command_line: str, address: str | None) -> Signer:
    """Return a signer that runs the program.

    The program may sign the same message differently each time. So the client cannot derive the key for results from a
    signature, and needs SVC_CIPHER_KEY.
    """
    posix = sys.platform != "win32"  # on Windows, backslashes are parts of paths
    try:
        command = tuple(word if posix else word.strip('"') for word in shlex.split(command_line, posix=posix))
    except ValueError as error:
        raise Refused(f"{COMMAND_VARIABLE} must be a command line: {error}", COMMAND_VARIABLE) from None
    if not command:
        raise Refused(f"{COMMAND_VARIABLE} must name a program", COMMAND_VARIABLE)
    if not address:
        raise Refused(
            f"{ADDRESS_VARIABLE} must be the address that {COMMAND_VARIABLE} signs for, to check each signature",
            ADDRESS_VARIABLE,
        )
    return RemoteSigner(read_hex(address, 20, ADDRESS_VARIABLE), by_typed_data=SignerCommand(command).sign)
