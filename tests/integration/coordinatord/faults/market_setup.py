"""The open market with a database, and coordinators that serve it as separate processes."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import attrs
import httpx

from common.address_book import AddressBook
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import environment


@attrs.frozen
class MarketSetup:
    """Deployed market, and the database for its coordinators."""

    world: World
    database_url: str

    @property
    def book(self) -> AddressBook:
        return address_book(self.world)

    def party(self, http: httpx.AsyncClient, wallet: DevWallet | str = "client") -> Party:
        """Return a party that sends its requests through `http`.

        `wallet` is a wallet, or a role to use the role's first wallet.
        """
        wallet = self.world.wallets.with_role(wallet)[0] if isinstance(wallet, str) else wallet
        return Party.at(wallet, self.book, http)

    @asynccontextmanager
    async def running_coordinator(
        self, *, timeout_s: float = 30, errors: int | None = None, **settings: object
    ) -> AsyncIterator[tuple[Coordinator, httpx.AsyncClient]]:
        """Run a coordinator as a separate process. Yield it with an HTTP client.

        `settings` override its environment. `errors` is the file descriptor of its log.
        """
        given = environment(self.world, self.database_url, **settings)
        async with (
            running(given, pick_free(), pick_free(), errors=errors) as coordinator,
            httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=timeout_s) as http,
        ):
            yield coordinator, http

    async def violations(self, promised: Collection[bytes] = ()) -> list[str]:
        """Wait until the running indexer has reached the head. Return the violations of I1 to I5.

        `promised` are the jobs that must be on the chain.
        """
        return await all_violations(self.database_url, self.world.anvil.rpc_url, self.book, promised=promised)
