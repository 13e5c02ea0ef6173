from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinatord.market.node import connect
from devnet.accounts import DevWallets
from devnet.anvil import Anvil
from tests.integration.coordinatord.market.ground import Ground, created, key_of, rpc


@pytest.fixture
def ground(anvil: Anvil, wallets: DevWallets, tmp_path: Path) -> Iterator[Ground]:
    with connect(anvil.rpc_url) as node:
        deployer = key_of(wallets.with_role("client")[3])
        rpc(node, "anvil_setNonce", deployer.address, "0x0")
        yield Ground(node, wallets, deployer, created(node, deployer, "DevToken", deployer.address), tmp_path)
