import pytest

from common.secp256k1 import Wallet
from devnet.accounts import Cast
from devnet.market import DevnetMarket
from devnet.world import World
from tests.integration.coordinatord.relayer.ops import Ops, signer


@pytest.fixture
def ops(world: World) -> Ops:
    return Ops.of(world.market)


@pytest.fixture
def relayer_wallet(cast: Cast) -> Wallet:
    return signer(cast.with_role("relayer")[0])


@pytest.fixture
def client(cast: Cast) -> Wallet:
    return signer(cast.with_role("client")[0])


@pytest.fixture
def provider(cast: Cast, market: DevnetMarket) -> Wallet:
    return signer(cast.with_role("provider")[0])
