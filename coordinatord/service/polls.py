"""GET /evm/jobs with `free`: a provider says that it is there, and is handed jobs that nobody else is handed."""

from typing import TypeAlias

import attrs

from common.refusal import Refused
from coordinatord.service.outcomes import NotSigned
from coordinatord.store import escrow_generations, leases, market
from coordinatord.store.catalog import has_model
from coordinatord.store.database import Connection, Database
from coordinatord.store.jobs import JobFilter, JobRow
from coordinatord.store.sessions import SessionRow
from coordinatord.store.snapshot import Snapshot

Leased: TypeAlias = tuple[Snapshot, list[JobRow]]


@attrs.frozen(slots=True)
class Polls:
    database: Database
    lease_ms: int
    keys_may_be_lost: bool  # with an escrow whose keys live in memory

    async def poll(
        self, session: SessionRow, wanted: JobFilter, free: int, limit: int, offset: int
    ) -> Leased | NotSigned:
        """Record the provider as live with `free` slots, lease it the oldest jobs it may claim, give what it holds."""
        provider_id, model_id = session.provider_id, wanted.model_id
        if provider_id is None:
            return NotSigned("authentication_error", "not_registered", "free needs a provider session")
        if wanted.state != "Open":
            raise Refused("free needs state=Open", "state")
        if model_id is None:
            raise Refused("free needs model", "model")
        if not await has_model(self.database, model_id):
            raise Refused("model is not in the catalogue", "model")

        async def body(connection: Connection) -> Leased:
            await leases.lock_provider(connection, provider_id)
            await market.mark_seen(connection, provider_id, model_id, free)
            custody = await escrow_generations.read_custody(connection) if self.keys_may_be_lost else None
            await leases.take(
                connection,
                wanted,
                provider_id=provider_id,
                model_id=model_id,
                free=free,
                lease_ms=self.lease_ms,
                custody=custody,
            )
            return await leases.read_held(connection, provider_id, model_id, limit, offset, custody=custody)

        return await self.database.transact(body)
