"""devnet.json: all that a program needs in order to attach to the local world.

Integers are JSON numbers, keys and addresses 0x-prefixed hex. `addresses` is the coordinator's address book,
`pin_store` holds its PIN_STORE_* values, a provider's `box_secret` opens what is sealed to its `box_key`, and
`escrow_key` is what open bids are sealed to.

Beside it stand the address book alone, for clients to pin, and what they come to know of this market.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from devnet.accounts import DevWallet
from devnet.catalogue import MODELS
from devnet.world import Devnet, World

ADDRESSES: Final = "addresses.json"
KNOWN_MARKETS: Final = "known/markets.json"


def write(path: Path, up: Devnet) -> None:
    """Whole or not at all, and for nobody else to read: the database's password is in it.

    What clients knew of the market that was up here before is forgotten: this one has an escrow of its own.
    """
    (path.parent / KNOWN_MARKETS).unlink(missing_ok=True)
    _write(path.parent / ADDRESSES, up.world.market.address_book)
    _write(path, describe(up))


def _write(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def describe(up: Devnet) -> dict[str, Any]:
    world = up.world
    return {
        "base_url": up.coordinator.base_url,
        "gateway": world.pins.gateway,
        "rpc_url": world.anvil.rpc_url,
        "metrics_url": up.coordinator.metrics_url,
        "provider_metrics_url": up.provider.metrics_url,
        "database_url": world.postgres.url(),
        "addresses": world.market.address_book,
        "escrow_key": "0x" + world.cast.escrow_key.hex(),
        "models": [{"id": model.name, "model_id": model.model_id, "endpoint": model.endpoint} for model in MODELS],
        "accounts": [_account(world, wallet) for wallet in world.cast.wallets],
        "pin_store": {
            "kind": world.pins.kind,
            "endpoint": world.pins.endpoint,
            "key": world.pins.key,
            "secret": world.pins.secret,
            "bucket": world.pins.bucket,
            "region": world.pins.region,
        },
        "processes": {child.program.name: child.pid for child in up.children},
    }


def _account(world: World, wallet: DevWallet) -> dict[str, Any]:
    account: dict[str, Any] = {
        "role": wallet.role,
        "address": wallet.address,
        "private_key": wallet.private_key,
    }
    if wallet.role == "provider":
        account["provider_id"] = world.market.provider_ids[wallet.address]
        account["box_key"] = "0x" + wallet.box_key.hex()
        account["box_secret"] = "0x" + wallet.box_secret.hex()
    return account
