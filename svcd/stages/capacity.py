"""How many jobs the network lets this provider hold: read from the registry, and asked for where it is too few."""

from typing import Final, NoReturn

import attrs
import structlog
import trio

from common.refusal import Refused
from svcd.coordinator.client import Coordinator, Provider
from svcd.coordinator.outcomes import Mined, describe
from svcd.coordinator.signer import Signer
from svcd.journal.journal import Journal
from svcd.slots import Slots
from svcd.trouble import Unavailable

log = structlog.get_logger(__name__)

_EVERY: Final = 60.0
_PATIENCE: Final = 90.0
_ISSUED_AT: Final = "providers.issued_at"
_REQUESTED: Final = "providers.requested"
_FULL_REPUTATION: Final = 1000
_UINT32: Final = 2**32 - 1


@attrs.frozen(slots=True, eq=False)
class Capacity:
    coordinator: Coordinator
    signer: Signer
    provider_id: int
    slots: Slots
    journal: Journal

    async def run(self) -> NoReturn:
        while True:
            try:
                await self.look()
            except (Unavailable, Refused) as trouble:
                log.warning("granted capacity not read", reason=str(trouble))
            await trio.sleep(_EVERY)

    async def look(self) -> None:
        provider = await self.coordinator.provider(self.provider_id)
        if provider.capacity != self.slots.granted:
            log.info("capacity granted", granted=provider.capacity, slots=self.slots.capacity, listed=provider.listed)
        self.slots.grant(provider.capacity)
        needed = request_for(self.slots.capacity, provider)
        # Only for more than ever before: what a ceiling keeps from us is not had by asking again.
        if provider.capacity < self.slots.capacity and await self.journal.noted(_REQUESTED) < needed:
            await self._request(needed)

    async def _request(self, n: int) -> None:
        op = self.signer.request_capacity(n, await self.journal.next_time(_ISSUED_AT))
        outcome = await self.coordinator.run(op, trio.current_time() + _PATIENCE)
        log.info("capacity requested", n=n, outcome=describe(outcome))
        if isinstance(outcome, Mined):
            await self.journal.note(_REQUESTED, n)


def request_for(slots: int, provider: Provider) -> int:
    """What must be requested so that, at this reputation, the grant is as large as the slots."""
    return min(_UINT32, -(-slots * _FULL_REPUTATION // max(1, provider.reputation)))
