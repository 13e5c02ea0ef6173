"""A wallet that buys at changing coordinators. Work started at one coordinator continues at another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import attrs

from devnet.accounts import DevWallet
from svc.client import Client
from svc.wire.transport import REQUEST_TIMEOUT_S
from tests.soak.answering import plain_http
from tests.soak.ground import Ground

_UNLIMITED: Final = 10**12  # base units, effectively unlimited


@attrs.define
class Buyer:
    ground: Ground
    wallet: DevWallet
    random: Random
    name: str = ""
    doing: str = ""  # current activity, for reports of slow work

    @asynccontextmanager
    async def anywhere(self) -> AsyncIterator[Client]:
        base_url = self.random.choice(self.ground.base_urls)
        pool = plain_http(base_url, timeout=REQUEST_TIMEOUT_S)
        client = Client(
            base_url,
            http=pool,
            wallet_key=self.wallet.private_key,
            gateways=(self.ground.bombs.url, self.ground.gateway),
            addresses=self.ground.book,
            max_amount=_UNLIMITED,
            max_batch_amount=_UNLIMITED,
            environment={},
        )
        async with pool, client:
            yield client
