"""Candidates for an order: the live providers that would take it."""

import attrs

from coordinatord.api.book import candidates_sql, liveness_sql
from coordinatord.api.book.candidates_sql import Demand, LiveAsk
from coordinatord.api.orders.bodies import MarketProbe, OrderBody
from coordinatord.storage.database.connections import Database


@attrs.frozen(slots=True)
class Matchmaker:
    """Finds live providers for an order, cheapest first, and notes which of them was picked."""

    database: Database
    liveness_ms: int
    candidates: int

    async def probe(self, probe: MarketProbe) -> list[LiveAsk]:
        """Return every live ask for the model and window, ranked."""
        demand = Demand(probe.model_id, probe.sla_secs, probe.units_in, probe.units_out, probe.designated)
        return await candidates_sql.read_candidates(self.database, demand, self.liveness_ms, None)

    async def matching(self, order: OrderBody) -> list[LiveAsk]:
        """Return the cheapest live providers with an ask that the order meets."""
        demand = Demand(
            order.model_id,
            order.sla_secs,
            order.units_in,
            order.units_out,
            order.designated,
            order.rate_in,
            order.rate_out,
        )
        return await candidates_sql.read_candidates(self.database, demand, self.liveness_ms, self.candidates)

    async def picked(self, order: OrderBody) -> None:
        """Note that an order was accepted: its designated provider goes behind others of the same price."""
        if order.designated:
            await liveness_sql.mark_picked(self.database, order.designated, order.model_id)
