"""Open the dependencies of the stages: connections, the market's deployment, the session and the backends."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import httpx
import structlog

from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.daemon.retries import retry
from common.domains import Domains
from common.refusal import Refused
from common.scalars import hex_of
from svc.wire.connections import open_client
from svc.wire.gateways import Gateways
from svc.wire.transport import Transport
from svcd.backends.backend import Backend
from svcd.backends.breaker import Breaker
from svcd.backends.build import open_backend
from svcd.backends.discount import Discount
from svcd.backends.load import Load, open_load
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig, ModelConfig
from svcd.coordinator.chain import ChainReader
from svcd.coordinator.client import Coordinator, read_deployment, transport_of
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.sessions import ProviderSession, sessions_of, sign_in
from svcd.journal.entries import Home
from svcd.journal.journal import Journal
from svcd.journal.slots import Slots
from svcd.payload.gateway import PayloadGateways

log = structlog.get_logger(__name__)

# For a coordinator that is starting.
_MAX_STARTUP_WAIT_S: Final = 5.0
_OP_SECONDS: Final = 100.0  # an op is answered after its receipt, which takes up to a minute plus the time in the queue


@attrs.frozen(slots=True, eq=False)
class ServedModel:
    """Model with its backend, breaker and load probe."""

    config: ModelConfig
    backend: Backend
    load: Load
    breaker: Breaker
    discount: Discount


@attrs.frozen(slots=True, eq=False)
class DaemonDependencies:
    """Dependencies of the stages. `model_ids` has the catalogue's ids by name, and grows with the catalogue."""

    config: DaemonConfig
    clock: Clock
    journal: Journal
    coordinator: Coordinator
    signer: OpSigner
    deployment: AddressBook
    provider_id: int
    model_ids: dict[str, int]
    gateways: PayloadGateways
    slots: Slots
    equipment: dict[str, ServedModel]
    chain: ChainReader | None  # None: claims reported by the coordinator are not verified

    @property
    def offered(self) -> dict[str, ServedModel]:
        return {name: one for name, one in self.equipment.items() if name in self.model_ids}


async def prepare(
    config: DaemonConfig,
    stack: AsyncExitStack,
    journal: Journal,
    clock: Clock,
    transport: httpx.AsyncBaseTransport | None = None,
) -> DaemonDependencies:
    """Prepare the dependencies, waiting for the coordinator.

    Raise `Fatal` if the coordinator serves another deployment or rejects the provider.
    """
    timeout = httpx.Timeout(30, read=_OP_SECONDS)
    http = await stack.enter_async_context(
        open_client(transport=transport, base_url=config.coordinator_url, timeout=timeout)
    )
    to_coordinator = transport_of(http, clock)
    deployment = await _deployment(config, to_coordinator)
    signer = OpSigner(config.wallet, Domains.of(deployment))
    coordinator = Coordinator(to_coordinator, sessions_of(to_coordinator, signer))
    session = await _session(coordinator, signer)
    book = deployment
    await journal.belongs_to(Home(book.chain_id, hex_of(book.job_registry), signer.address))
    model_ids = await _model_ids(config, coordinator)
    slots = Slots(config.slots)
    return DaemonDependencies(
        config=config,
        clock=clock,
        journal=journal,
        coordinator=coordinator,
        signer=signer,
        deployment=deployment,
        provider_id=session.provider_id,
        model_ids=model_ids,
        gateways=PayloadGateways(
            Gateways(http, config.gateways, config.gateway_attempts, config.gateway_pause_seconds)
        ),
        slots=slots,
        chain=await _chain(config, http, deployment, session.provider_id),
        equipment={
            model.name: await stack.enter_async_context(_equipped(model, slots, config.private))
            for model in config.models
        },
    )


async def _deployment(config: DaemonConfig, transport: Transport) -> AddressBook:
    def report(error: Exception) -> None:
        log.warning("waiting for the coordinator", reason=str(error))

    # A malformed answer may be a proxy's page while the coordinator restarts.
    read = partial(read_deployment, transport)
    deployment = await retry(read, on=(Unavailable, Refused), max_s=_MAX_STARTUP_WAIT_S, report=report)
    if config.addresses is not None:
        found = config.addresses.differences(deployment)
        if found:
            raise Fatal(f"{config.coordinator_url} serves another deployment than addresses_file: {'; '.join(found)}")
    return deployment


async def _chain(
    config: DaemonConfig, http: httpx.AsyncClient, deployment: AddressBook, provider_id: int
) -> ChainReader | None:
    """Return the reader of the chain. Raise `Fatal` for another chain; an unreachable node only logs a warning."""
    if config.rpc_url is None:
        return None
    chain = ChainReader(http, config.rpc_url, deployment, provider_id)
    try:
        found = await chain.chain_id()
    except Unavailable as error:
        log.warning("the node does not answer: jobs that are claimed wait for it", reason=str(error))
        return chain
    if found != deployment.chain_id:
        raise Fatal(f"rpc_url is a node of chain {found}, the market is on {deployment.chain_id}")
    return chain


async def _session(coordinator: Coordinator, signer: OpSigner) -> ProviderSession:
    def report(error: Exception) -> None:
        log.warning("waiting for a session", reason=str(error))

    async def signed_in() -> ProviderSession:
        session = await sign_in(coordinator.sessions)
        if isinstance(session, ProviderSession):
            log.info("signed in", provider_id=session.provider_id, expires_at=session.session.expires_at)
            return session
        if session.final:
            raise Fatal(f"the coordinator does not sign {signer.address} in: {session.advice}")
        raise Unavailable(session.detail)

    return await retry(signed_in, on=Unavailable, max_s=_MAX_STARTUP_WAIT_S, report=report)


async def _model_ids(config: DaemonConfig, coordinator: Coordinator) -> dict[str, int]:
    def report(error: Exception) -> None:
        log.warning("waiting for the catalogue", reason=str(error))

    known = await retry(coordinator.models, on=(Unavailable, Refused), max_s=_MAX_STARTUP_WAIT_S, report=report)
    for name in sorted(config.slots.keys() - known.keys()):
        log.warning("this model is not in the catalogue, and is not offered until it is", model=name)
    return known


@asynccontextmanager
async def _equipped(model: ModelConfig, slots: Slots, private: Sequence[Path]) -> AsyncIterator[ServedModel]:
    async with (
        open_backend(model.backend, private) as backend,
        open_load(model.load, model=model.name, slots=model.slots, in_flight=lambda: slots.held_of(model.name)) as load,
    ):
        discount = Discount(model.name, model.discount_percent)
        yield ServedModel(model, backend, load, Breaker(), discount)
