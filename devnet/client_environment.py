"""Environment variables for a client of the running devnet: the coordinator, the gateway, and a funded wallet.

The clients' known-markets file is in the state directory, so a devnet adds nothing to the user's known markets.
"""

import json
import shlex
from pathlib import Path
from typing import Any

from devnet.errors import DevnetError
from devnet.manifest import ADDRESSES_FILE, KNOWN_MARKETS_FILE


def read_manifest(state_dir: Path) -> dict[str, Any]:
    """Read devnet.json in `state_dir`. Raise `DevnetError` if no devnet runs there."""
    try:
        manifest: dict[str, Any] = json.loads((state_dir / "devnet.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DevnetError(f"no devnet runs in {state_dir.absolute()}: start one with `make devnet`") from None
    return manifest


def export_commands(state_dir: Path, key_file: Path | None = None) -> str:
    """Return shell commands that set the variables. The wallet is the first client's, or the one in `key_file`.

    Raise `DevnetError` if no devnet runs in `state_dir`.
    """
    manifest = read_manifest(state_dir)
    client = next(account for account in manifest["accounts"] if account["role"] == "client")
    values = {
        "DEVNET_CHAIN_ID": str(manifest["addresses"]["chainId"]),
        "SVC_BASE_URL": manifest["base_url"],
        "SVC_PIN_GATEWAY": manifest["gateway"],
        "SVC_RPC_URL": manifest["rpc_url"],
        "SVC_WALLET_KEY": client["private_key"],
        "SVC_ADDRESSES_FILE": str(state_dir.absolute() / ADDRESSES_FILE),
        "SVC_KNOWN_MARKETS": str(state_dir.absolute() / KNOWN_MARKETS_FILE),
    }
    lines = []
    if key_file is not None:
        del values["SVC_WALLET_KEY"]
        values["SVC_WALLET_KEY_FILE"] = str(key_file.absolute())
        lines = ["unset SVC_WALLET_KEY"]  # an earlier `devnet env` may have set it
    lines += [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join(lines)
