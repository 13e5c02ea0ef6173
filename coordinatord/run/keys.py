"""Create the operator's keys, show their addresses and public keys, and report when they are no longer needed."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.daemon.process import Fatal
from common.key_derivation import escrow_key
from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import Wallet
from coordinatord.run.config import Config

if TYPE_CHECKING:
    from coordinatord.chain.relayer.transactions_sql import AccountUsage

_KEY_STATE_TEXTS: Final = {
    "relays": "relays",
    "drained": "ended: its key is no longer needed",
    "not drained": "NOT ENDED: run `coordinatord drain` with its key, unless a process still relays with it",
}
KEY_SETTLED_AFTER_S: Final = 3600.0
"""When an account has signed nothing for this time, no reorg can affect the account's transactions any more."""


def is_drained(use: "AccountUsage", settled_s: float = KEY_SETTLED_AFTER_S) -> bool:
    """Return True if the key of the account is no longer needed."""
    return not use.pending_count and use.idle_s > settled_s


def relayer_rows(uses: "Sequence[AccountUsage]", current: bytes) -> list[dict[str, object]]:
    """Return one row for each account, with the state of its key. `quiet_s` is None if the account signed nothing."""
    rows: list[dict[str, object]] = []
    for use in uses:
        state = "relays" if use.account == current else "drained" if is_drained(use) else "not drained"
        rows.append(
            {"account": hex_of(use.account), "pending": use.pending_count, "quiet_s": use.idle_s, "state": state}
        )
    if current not in {use.account for use in uses}:
        rows.append({"account": hex_of(current), "pending": 0, "quiet_s": None, "state": "relays"})
    return rows


def relayer_table(uses: "Sequence[AccountUsage]", current: bytes) -> str:
    """Return the table of `coordinatord relayers`."""
    lines = []
    for row in relayer_rows(uses, current):
        quiet, state = row["quiet_s"], _KEY_STATE_TEXTS[str(row["state"])]
        if isinstance(quiet, int | float):
            ago = f"{quiet / 60:,.0f} min ago"
            lines.append(f"{row['account']}  {row['pending']:>3} pending, last signed {ago:>12}  {state}")
        else:
            lines.append(f"{row['account']}  has not signed yet: {state}")
    return "\n".join(lines)


def key_rows(config: Config) -> list[tuple[str, str]]:
    """Return a pair for every key that is set: its use, and its address or public key."""
    rows = [("relayer", _relayer_account_text(config))]
    if config.escrow_mode == "off":
        return rows
    operators = [bytes.fromhex(key.reveal()) for key in config.operator_keys]
    if config.escrow_mode == "mock":  # the coordinator creates and rotates its escrow keys
        uses = ["operator, signs", *["operator, trusted"] * len(operators)]
        return rows + [(use, hex_of(Wallet(key).address)) for use, key in zip(uses, operators, strict=False)]
    uses = ["escrow, announced", *["escrow, opens"] * len(operators)]
    publics = [escrow_key(key).public.raw.hex() for key in operators]
    return rows + list(zip(uses, publics, strict=False))


def _relayer_account_text(config: Config) -> str:
    if config.relayer_key is not None:
        return hex_of(Wallet(bytes.fromhex(config.relayer_key.reveal())).address)
    if config.relayer_keystore is not None:
        return f"the account of the keystore {config.relayer_keystore}, which this command does not open"
    return f"{config.relayer_account}, whose key is in the external signer"


def new_key(path: Path) -> str:
    """Write a new private key to a new file that only its owner can read. Return its address."""
    key = secrets.token_bytes(32)
    try:
        wallet = Wallet(key)
    except Refused:  # about one number in 2**128 is not a valid key
        return new_key(path)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(f"0x{key.hex()}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Fatal(f"the new key cannot be written to {path}: {error.strerror}") from None
    return hex_of(wallet.address)
