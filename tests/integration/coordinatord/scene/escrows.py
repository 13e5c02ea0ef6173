"""Escrows for tests: in development mode, with a movable clock, and with each other as peers."""

import base64
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import httpx

from common.box import PublicKey, SecretKey, open_sealed
from common.container import open_with_data_key
from common.daemon.asgi import ASGIApp
from common.escrow_evidence import mock_measurement
from coordinatord.api.escrow.development import MockCustody, MockSettings
from coordinatord.api.escrow.handover import HandoverService, OperatorKeys
from coordinatord.api.escrow.hosting import Escrow
from coordinatord.api.escrow.peer import Peer
from coordinatord.run import app
from coordinatord.run.dependencies import Dependencies
from devnet.contracts import connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage
from tests.support.fakes.streamed import http_over

OPERATOR_KEY = "0a" * 32
RELEASE = 3
RESPONSE = SecretKey.generate()
HOUR = 3600.0
MOCK: dict[str, object] = {"ESCROW_MODE": "mock", "OPERATOR_KEY": OPERATOR_KEY, "RELEASE_ORDINAL": RELEASE}


@attrs.define
class Clock:
    """Wall time plus an offset that tests set."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def mock_escrow(
    clock: Clock, peer: ASGIApp | None = None, clock_offset_ms: int = 0
) -> Callable[[Dependencies], AbstractAsyncContextManager[Escrow]]:
    """An escrow that rotates each hour, with another application of this process as its peer."""

    @asynccontextmanager
    async def made(ground: Dependencies) -> AsyncIterator[Escrow]:
        operators = OperatorKeys.from_keys(ground.domains, ground.config.operator_keys)
        transport = httpx.ASGITransport(peer) if peer is not None else httpx.AsyncHTTPTransport()
        async with httpx.AsyncClient(transport=transport) as http:
            source = Peer(http_over(http), "http://peer", operators, RELEASE, time.time) if peer is not None else None
            settings = MockSettings(RELEASE, 3_600_000, 300_000, 300, peer is not None, clock_offset_ms)
            custody = MockCustody(settings, ground.database, ground.rpc, source, clock)
            providers = app.escrow_dependencies(ground).providers
            yield Escrow(custody, HandoverService(operators, providers, custody.held_generations, RELEASE, time.time))
            custody.wipe_keys()

    return made


def custody_of(stage: Stage) -> MockCustody:
    assert stage.escrow is not None
    custody = stage.escrow.custody
    assert isinstance(custody, MockCustody)
    return custody


async def allow(world: World, status: int = 1, release: int = RELEASE) -> None:
    """Set a release's status, as the market's admin does."""
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        providers = contract_at(chain, "ProviderRegistry", world.market.providers)
        measurement = mock_measurement(release)
        await chain.send(providers, world.wallets.admin.address, "setAllowlist", measurement, status, "{}")


async def announced(stage: Stage) -> PublicKey:
    answer = await stage.http.get("/key")
    assert answer.status_code == 200, answer.text
    return PublicKey(bytes.fromhex(answer.json()["escrow_public_key"]))


async def claimed(client: Party, provider: Party, container: bytes) -> str:
    job: str = (await client.post(container=container))["job_id"]
    answer = await provider.run(provider.claim(job))
    assert answer.status_code == 201, answer.text
    return job


async def released(http: httpx.AsyncClient, provider: Party, job: str, container: bytes) -> httpx.Response:
    return await http.post("/release", json=provider.release(job, container, RESPONSE.public))


def released_key(answer: httpx.Response) -> bytes:
    assert answer.status_code == 200, answer.text
    key = open_sealed(RESPONSE, base64.b64decode(answer.json()["dek_sealed"]))
    assert key is not None
    return key


def opened(answer: httpx.Response, container: bytes) -> bytes:
    """Return the payload, decrypted with the released key."""
    return open_with_data_key(released_key(answer), container)


def code(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["code"]
