"""Write devnet.json, which lets other programs use the running devnet, and addresses.json, the devnet's address book.

Integers are JSON numbers, and keys and addresses are 0x-prefixed hex. `addresses` is the address book. `pin_store`
holds the coordinator's PIN_STORE_* values. A provider's `box_secret` is the secret of `box_key`. Clients seal open
orders to `escrow_key`.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from devnet.accounts import DevWallet
from devnet.catalogue import MODELS
from devnet.world import Devnet, World

ADDRESSES_FILE: Final = "addresses.json"
KNOWN_MARKETS_FILE: Final = "known/markets.json"


def write_manifest(path: Path, devnet: Devnet) -> None:
    """Write devnet.json and addresses.json atomically. Only this user can read them: devnet.json holds keys and
    passwords.

    Delete the known-markets file of an earlier devnet in this directory, because the earlier market no longer exists.
    """
    (path.parent / KNOWN_MARKETS_FILE).unlink(missing_ok=True)
    _write_json(path.parent / ADDRESSES_FILE, devnet.world.market.address_book)
    _write_json(path, describe_devnet(devnet))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def describe_devnet(devnet: Devnet) -> dict[str, Any]:
    world = devnet.world
    return {
        "base_url": devnet.coordinator.base_url,
        "gateway": world.pins.gateway,
        "rpc_url": world.anvil.rpc_url,
        "metrics_url": devnet.coordinator.metrics_url,
        "provider_metrics_url": devnet.provider.metrics_url,
        "database_url": world.postgres.url(),
        "addresses": world.market.address_book,
        "escrow_key": "0x" + world.wallets.escrow_key.hex(),
        "models": [{"id": model.name, "model_id": model.model_id, "endpoint": model.endpoint} for model in MODELS],
        "accounts": [_account_json(world, wallet) for wallet in world.wallets.wallets],
        "pin_store": {
            "kind": world.pins.kind,
            "endpoint": world.pins.endpoint,
            "key": world.pins.key,
            "secret": world.pins.secret,
            "bucket": world.pins.bucket,
            "region": world.pins.region,
        },
        "processes": {child.program.name: child.pid for child in devnet.children},
    }


def _account_json(world: World, wallet: DevWallet) -> dict[str, Any]:
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
