from collections.abc import Iterator

import attrs
import pytest

from common.secp256k1 import Wallet
from devnet.accounts import DevWallets
from devnet.anvil import Anvil
from devnet.market import DevnetMarket
from devnet.world import World
from tests.integration.conftest import Services
from tests.integration.coordinatord.relayer.ops import Ops, signer
from tests.support.faults.rpc_proxy import rpc_proxy
from tests.support.faults.write_ahead import WriteAhead


@pytest.fixture
def write_ahead(services: Services, database_url: str) -> Iterator[WriteAhead]:
    """Check in every relayer test that each sent transaction was stored first."""
    oracle = WriteAhead(database_url)
    yield oracle
    found = services.portal.call(oracle.found)
    services.portal.call(oracle.aclose)
    assert found == []


@pytest.fixture
def anvil(services: Services, anvil: Anvil, write_ahead: WriteAhead) -> Iterator[Anvil]:
    """The node behind a proxy that shows every sent transaction to the oracle, from any process."""
    for proxy in services.run(rpc_proxy(anvil.rpc_url, write_ahead)):
        yield attrs.evolve(anvil, rpc_url=proxy.url)


@pytest.fixture
def ops(world: World) -> Ops:
    return Ops.of(world.market)


@pytest.fixture
def relayer_wallet(wallets: DevWallets) -> Wallet:
    return signer(wallets.with_role("relayer")[0])


@pytest.fixture
def client(wallets: DevWallets) -> Wallet:
    return signer(wallets.with_role("client")[0])


@pytest.fixture
def provider(wallets: DevWallets, market: DevnetMarket) -> Wallet:
    return signer(wallets.with_role("provider")[0])
