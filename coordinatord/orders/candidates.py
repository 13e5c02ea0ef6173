"""Who would take an order, and recording of who is there."""

import attrs

from coordinatord.book import candidates_sql as book
from coordinatord.book.candidates_sql import Candidate, Demand
from coordinatord.database.connections import Database
from coordinatord.orders.checks import MarketProbe, OrderBody


@attrs.frozen(slots=True)
class Market:
    database: Database
    liveness_ms: int
    candidates: int

    async def probe(self, probe: MarketProbe) -> list[Candidate]:
        """Every live ask for the model and window, ranked."""
        demand = Demand(probe.model_id, probe.sla_secs, probe.units_in, probe.units_out, probe.designated)
        return await book.read_candidates(self.database, demand, self.liveness_ms, None)

    async def matching(self, order: OrderBody) -> list[Candidate]:
        """The cheapest live providers whose ask the order clears."""
        demand = Demand(
            order.model_id,
            order.sla_secs,
            order.units_in,
            order.units_out,
            order.designated,
            order.rate_in,
            order.rate_out,
        )
        return await book.read_candidates(self.database, demand, self.liveness_ms, self.candidates)

    async def picked(self, order: OrderBody) -> None:
        """An order was posted: who it is designated to goes behind others of the same price."""
        if order.designated:
            await book.mark_picked(self.database, order.designated, order.model_id)
