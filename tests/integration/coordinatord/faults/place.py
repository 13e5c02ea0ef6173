"""The open market with a database, and coordinators that serve it as separate processes."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import attrs
import httpx

from common.address_book import AddressBook
from common.domains import Domains
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.indexer.moves import address_book
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import environment


@attrs.frozen
class Place:
    world: World
    database_url: str

    @property
    def book(self) -> AddressBook:
        return address_book(self.world)

    def party(self, http: httpx.AsyncClient, wallet: DevWallet | str = "client") -> Party:
        """Return a party that uses this client's coordinator: the wallet, or the first wallet of a role."""
        wallet = self.world.wallets.with_role(wallet)[0] if isinstance(wallet, str) else wallet
        return Party(wallet_of(wallet), Domains.of(self.book), self.book.job_registry, http, wallet.box_key)

    @asynccontextmanager
    async def serving(
        self, *, timeout_s: float = 30, errors: int | None = None, **settings: object
    ) -> AsyncIterator[tuple[Coordinator, httpx.AsyncClient]]:
        given = environment(self.world, self.database_url, **settings)
        async with (
            running(given, pick_free(), pick_free(), errors=errors) as coordinator,
            httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=timeout_s) as http,
        ):
            yield coordinator, http

    async def violations(self, promised: Collection[bytes] = ()) -> list[str]:
        """Check I1 to I5 once the running indexer has reached the head."""
        return await all_violations(self.database_url, self.world.anvil.rpc_url, self.book, promised=promised)
