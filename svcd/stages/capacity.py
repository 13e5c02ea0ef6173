"""Read the capacity that the registry grants to this provider, and request more if needed for the configured slots."""

from typing import Final, NoReturn

import attrs
import structlog
import trio

from common.refusal import Refused
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator, ProviderRecord
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.outcomes import OpMined, describe_outcome
from svcd.journal.journal import Journal
from svcd.journal.slots import Slots

log = structlog.get_logger(__name__)

_READ_INTERVAL_S: Final = 60.0
_REQUEST_TIMEOUT_S: Final = 90.0
_RETRY_INTERVAL_S: Final = 5.0
_ISSUED_AT_KEY: Final = "providers.issued_at"
_REQUESTED_KEY: Final = "providers.requested"
_FULL_REPUTATION: Final = 1000
_MAX_UINT32: Final = 2**32 - 1
_BATCH_DELAY_S: Final = 1.0  # so that jobs that end in the same block cause only one read


@attrs.define(slots=True, eq=False)
class CapacityUpdater:
    """Updater that reads the granted capacity, and requests more if needed."""

    coordinator: Coordinator
    signer: OpSigner
    provider_id: int
    slots: Slots
    journal: Journal
    _standing: tuple[int, int] | None = None  # reputation and capacity, as last stored

    async def run(self) -> NoReturn:
        while True:
            try:
                read_soon = await self.update()
            except (Unavailable, Refused) as error:
                log.warning("granted capacity not read", reason=str(error))
                read_soon = True
            with trio.move_on_after(_RETRY_INTERVAL_S if read_soon else _READ_INTERVAL_S):
                await self.slots.wait_until_grant_stale()
                await trio.sleep(_BATCH_DELAY_S)

    async def update(self) -> bool:
        """Read the grant, and request more if needed. Return True if the grant should be read again soon."""
        provider = await self._read_provider()
        needed = capacity_request_for(self.slots.total_slots, provider)

        # Do not repeat a request. If an equal or larger request was not granted in full, the admin's ceiling is the
        # limit.
        if provider.capacity < self.slots.total_slots and await self.journal.read_value(_REQUESTED_KEY) < needed:
            requested = await self._request_capacity(needed)
            if requested:
                await self._read_provider()  # the index may already have the mined request
            return requested
        return False

    async def _read_provider(self) -> ProviderRecord:
        self.slots.mark_grant_current()
        provider = await self.coordinator.read_provider(self.provider_id)
        if provider.capacity != self.slots.granted_slots:
            log.info(
                "capacity granted", granted=provider.capacity, slots=self.slots.total_slots, listed=provider.listed
            )
        self.slots.set_granted(provider.capacity)
        standing = (provider.reputation, provider.capacity)
        if standing != self._standing:
            await self.journal.record_standing(*standing)
            self._standing = standing
        return provider

    async def _request_capacity(self, capacity: int) -> bool:
        op = self.signer.sign_request_capacity(capacity, await self.journal.next_signing_time(_ISSUED_AT_KEY))
        outcome = await self.coordinator.send_op(op, trio.current_time() + _REQUEST_TIMEOUT_S)
        log.info("capacity requested", n=capacity, outcome=describe_outcome(outcome))
        if isinstance(outcome, OpMined):
            await self.journal.store_value(_REQUESTED_KEY, capacity)
        return isinstance(outcome, OpMined)


def capacity_request_for(slots: int, provider: ProviderRecord) -> int:
    """Return the capacity to request, so that the grant covers the slots. A low reputation reduces the grant."""
    return min(_MAX_UINT32, -(-slots * _FULL_REPUTATION // max(1, provider.reputation)))
