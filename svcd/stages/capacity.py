"""Capacity: the jobs that the network lets this provider hold, read from the registry and raised if too few."""

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

_EVERY: Final = 60.0
_PATIENCE: Final = 90.0
_RETRY: Final = 5.0
_ISSUED_AT: Final = "providers.issued_at"
_REQUESTED: Final = "providers.requested"
_FULL_REPUTATION: Final = 1000
_UINT32: Final = 2**32 - 1
_TOGETHER: Final = 1.0  # seconds: the ends of one block come together, and one look is enough for them


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
            with trio.move_on_after(_RETRY if again else _EVERY):
                await self.slots.until_grant_may_differ()
                await trio.sleep(_TOGETHER)

    async def look(self) -> bool:
        """True when more was requested, and may be granted by now."""
        provider = await self._read()
        needed = request_for(self.slots.capacity, provider)
        # Only for more than ever before: what a ceiling keeps from us is not had by asking again.
        if provider.capacity < self.slots.capacity and await self.journal.noted(_REQUESTED) < needed:
            requested = await self._request(needed)
            if requested:
                await self._read()  # what was mined may be in the index already
            return requested
        return False

    async def _read(self) -> ProviderRecord:
        self.slots.ask_for_grant()
        provider = await self.coordinator.provider(self.provider_id)
        if provider.capacity != self.slots.granted:
            log.info("capacity granted", granted=provider.capacity, slots=self.slots.capacity, listed=provider.listed)
        self.slots.grant(provider.capacity)
        return provider

    async def _request(self, n: int) -> bool:
        op = self.signer.request_capacity(n, await self.journal.next_time(_ISSUED_AT))
        outcome = await self.coordinator.run(op, trio.current_time() + _PATIENCE)
        log.info("capacity requested", n=n, outcome=describe(outcome))
        if isinstance(outcome, OpMined):
            await self.journal.note(_REQUESTED, n)
        return isinstance(outcome, OpMined)


def request_for(slots: int, provider: ProviderRecord) -> int:
    """What must be requested so that, at this reputation, the grant is as large as the slots."""
    return min(_UINT32, -(-slots * _FULL_REPUTATION // max(1, provider.reputation)))
