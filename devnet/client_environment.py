"""Environment of a client of the market that is up: the coordinator, the gateway, and a wallet with money.

The address book and the facts that a client remembers of this market stay in the devnet's state directory. A devnet is
a market of its own, so its clients add nothing to the markets that the user knows.
"""

import json
import shlex
from pathlib import Path
from typing import Any

from devnet.errors import DevnetError
from devnet.manifest import ADDRESSES, KNOWN_MARKETS


def described_in(state_dir: Path) -> dict[str, Any]:
    """What `describe` said of the market that is up there. Raises `DevnetError` when there is none."""
    try:
        described: dict[str, Any] = json.loads((state_dir / "devnet.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DevnetError(f"no devnet is up in {state_dir.absolute()}: make devnet starts one") from None
    return described


def exports(state_dir: Path, key_file: Path | None = None) -> str:
    """Lines for a shell to evaluate: as the first client, or as whoever holds a key file. Raises `DevnetError` when no
    market is up there."""
    described = described_in(state_dir)
    client = next(account for account in described["accounts"] if account["role"] == "client")
    values = {
        "DEVNET_CHAIN_ID": str(described["addresses"]["chainId"]),
        "SVC_BASE_URL": described["base_url"],
        "SVC_PIN_GATEWAY": described["gateway"],
        "SVC_RPC_URL": described["rpc_url"],
        "SVC_WALLET_KEY": client["private_key"],
        "SVC_ADDRESSES_FILE": str(state_dir.absolute() / ADDRESSES),
        "SVC_KNOWN_MARKETS": str(state_dir.absolute() / KNOWN_MARKETS),
    }
    lines = []
    if key_file is not None:
        del values["SVC_WALLET_KEY"]
        values["SVC_WALLET_KEY_FILE"] = str(key_file.absolute())
        lines = ["unset SVC_WALLET_KEY"]  # of the first client, as it may have been exported before
    lines += [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join(lines)
