"""The shared chain follows the wall clock after any earlier tests."""

import time

from devnet.anvil import Anvil
from tests.integration.conftest import Services, chain_set_back


def test_chain_whose_clock_is_off_starts_the_next_test_on_time(services: Services, shared_anvil: Anvil) -> None:
    services.portal.call(shared_anvil.call, "evm_setTime", int(time.time()) + 3000)
    with chain_set_back(services, shared_anvil):
        block = services.portal.call(shared_anvil.call, "eth_getBlockByNumber", "latest", False)
        assert abs(int(block["timestamp"], 16) - time.time()) < 60
