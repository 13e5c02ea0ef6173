"""What a client of the market that is up has in its environment: the coordinator, the gateway, a wallet with money.

The address book and what a client comes to know of this market stay in its state directory: a devnet is a market of its
own, and its clients leave nothing among those that the user knows.
"""

import json
import shlex
from pathlib import Path

from devnet.manifest import ADDRESSES, KNOWN_MARKETS
from devnet.trouble import Trouble


def exports(state_dir: Path) -> str:
    """Lines for a shell to evaluate. Raises `Trouble` when no market is up there."""
    try:
        described = json.loads((state_dir / "devnet.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Trouble(f"no devnet is up in {state_dir.absolute()}: make devnet starts one") from None
    client = next(account for account in described["accounts"] if account["role"] == "client")
    values = {
        "SVC_BASE_URL": described["base_url"],
        "SVC_PIN_GATEWAY": described["gateway"],
        "SVC_RPC_URL": described["rpc_url"],
        "SVC_WALLET_KEY": client["private_key"],
        "SVC_ADDRESSES_FILE": str(state_dir.absolute() / ADDRESSES),
        "SVC_KNOWN_MARKETS": str(state_dir.absolute() / KNOWN_MARKETS),
    }
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())
