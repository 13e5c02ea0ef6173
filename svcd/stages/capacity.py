"""Read the capacity that the registry grants this provider, and request more when it is below the slots."""

from typing import Final, NoReturn

import attrs
import structlog
import trio

from common.refusal import Refused
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator, ProviderRecord
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.outcomes import OpMined, describe
from svcd.journal.journal import Journal
from svcd.journal.slots import Slots

log = structlog.get_logger(__name__)

_INTERVAL_S: Final = 60.0
_REQUEST_TIMEOUT_S: Final = 90.0
_RETRY_INTERVAL_S: Final = 5.0
_ISSUED_AT_KEY: Final = "providers.issued_at"
_REQUESTED_KEY: Final = "providers.requested"
_FULL_REPUTATION: Final = 1000
_MAX_UINT32: Final = 2**32 - 1
_BATCH_DELAY_S: Final = 1.0  # jobs that end in the same block share one read


@attrs.frozen(slots=True, eq=False)
class Capacity:
    coordinator: Coordinator
    signer: OpSigner
    provider_id: int
    slots: Slots
    journal: Journal

    async def run(self) -> NoReturn:
        while True:
            try:
                again = await self.look()
            except (Unavailable, Refused) as error:
                log.warning("granted capacity not read", reason=str(error))
                again = True
            with trio.move_on_after(_RETRY_INTERVAL_S if again else _INTERVAL_S):
                await self.slots.wait_grant_doubt()
                await trio.sleep(_BATCH_DELAY_S)

    async def look(self) -> bool:
        """Read the grant. Return True if a larger grant was requested, so it should be read again soon."""
        provider = await self._read()
        needed = request_for(self.slots.capacity, provider)
        # Request only more than any earlier request: repeating a request does not lift the market's ceiling.
        if provider.capacity < self.slots.capacity and await self.journal.noted(_REQUESTED_KEY) < needed:
            requested = await self._request(needed)
            if requested:
                await self._read()  # the index may already have the mined request
            return requested
        return False

    async def _read(self) -> ProviderRecord:
        self.slots.clear_grant_doubt()
        provider = await self.coordinator.provider(self.provider_id)
        if provider.capacity != self.slots.granted:
            log.info("capacity granted", granted=provider.capacity, slots=self.slots.capacity, listed=provider.listed)
        self.slots.grant(provider.capacity)
        return provider

    async def _request(self, n: int) -> bool:
        op = self.signer.request_capacity(n, await self.journal.next_time(_ISSUED_AT_KEY))
        outcome = await self.coordinator.run(op, trio.current_time() + _REQUEST_TIMEOUT_S)
        log.info("capacity requested", n=n, outcome=describe(outcome))
        if isinstance(outcome, OpMined):
            await self.journal.note(_REQUESTED_KEY, n)
        return isinstance(outcome, OpMined)


def request_for(slots: int, provider: ProviderRecord) -> int:
    """Return the capacity to request so that the grant, scaled by reputation, covers the slots."""
    return min(_MAX_UINT32, -(-slots * _FULL_REPUTATION // max(1, provider.reputation)))
