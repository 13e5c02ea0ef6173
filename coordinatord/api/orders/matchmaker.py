"""Candidates for an order: the live providers that would take it."""

from typing import Any

import attrs

from coordinatord.api.book import candidates_sql, liveness_sql
from coordinatord.api.book.candidates_sql import Demand, LiveAsk
from coordinatord.api.orders.bodies import MarketProbe, OrderBody
from coordinatord.storage.database.connections import Database


@attrs.frozen(slots=True)
class Matchmaker:
    """Finds live providers for an order, cheapest first, and records which provider an order picked."""

    database: Database
    liveness_ms: int
    max_candidates: int

    async def find_asks(self, order: MarketProbe | OrderBody) -> list[LiveAsk]:
        """Return the cheapest live asks that the order meets. For a probe, return every live ask for its model and
        window, ranked."""
        terms: dict[str, Any] = {field.name: getattr(order, field.name, None) for field in attrs.fields(Demand)}
        limit = None if isinstance(order, MarketProbe) else self.max_candidates
        return await candidates_sql.read_candidates(self.database, Demand(**terms), self.liveness_ms, limit)

    async def record_pick(self, order: OrderBody) -> None:
        """Record that an order was accepted. The provider that it designates then ranks behind other providers of the
        same price."""
        if order.designated:
            await liveness_sql.record_pick(self.database, order.designated, order.model_id)
