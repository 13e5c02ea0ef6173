from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.coordinatord.failover.servers import Pair, replicated


@pytest.fixture
async def synchronous(tmp_path: Path) -> AsyncIterator[Pair]:
    async with replicated(tmp_path, synchronous=True) as pair:
        yield pair


@pytest.fixture
async def asynchronous(tmp_path: Path) -> AsyncIterator[Pair]:
    async with replicated(tmp_path, synchronous=False) as pair:
        yield pair
