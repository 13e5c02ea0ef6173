"""Simulated network: to the coordinators, and to a gateway in front of the pin store."""

from typing import Final

import httpx

from tests.simulation.coordinator.faults import Faults
from tests.simulation.coordinator.lives import Front
from tests.simulation.coordinator.store import SimulatedStore

COORDINATOR: Final = "https://coordinator"
GATEWAY: Final = "https://gateway"


class Ways(httpx.AsyncBaseTransport):
    """Route requests by host. During the noisy time, the gateway sometimes misses content."""

    def __init__(self, front: Front, store: SimulatedStore, faults: Faults) -> None:
        self._front, self.store, self._faults = front, store, faults

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == httpx.URL(GATEWAY).host:
            return await self.store.served(request, is_sound=not self._faults.noisy())
        return await self._front.handle_async_request(request)

    async def whole(self, request: httpx.Request) -> httpx.Response:
        """Read the complete body, for callers outside this loop."""
        response = await self.handle_async_request(request)
        try:
            content = await response.aread()
        finally:
            await response.aclose()
        return httpx.Response(response.status_code, headers=response.headers, content=content)
