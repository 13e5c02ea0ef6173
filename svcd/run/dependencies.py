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
from svc.wire.tabs import TabRoutes
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
from svcd.coordinator.client import Coordinator, open_transport, read_deployment
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.sessions import ProviderSession, provider_sessions, sign_in
from svcd.journal.entries import JournalBinding
from svcd.journal.journal import Journal
from svcd.journal.slots import Slots
from svcd.payload.gateway import PayloadGateways
from svcd.tabs.direct import DirectServer, open_server
from svcd.tabs.mailbox import FrameRoutes

log = structlog.get_logger(__name__)

_MAX_RETRY_PAUSE_S: Final = 5.0  # between two attempts to reach the coordinator
# The coordinator answers an op after the op's receipt: up to a minute plus the time in the queue.
_OP_TIMEOUT_S: Final = 100.0


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
    """Dependencies of the stages. `model_ids` has the catalogue's ids by name, and is updated with the catalogue."""

    config: DaemonConfig
    clock: Clock
    journal: Journal
    coordinator: Coordinator
    signer: OpSigner
    address_book: AddressBook
    provider_id: int
    model_ids: dict[str, int]
    gateways: PayloadGateways
    slots: Slots
    served_models: dict[str, ServedModel]
    mailbox: FrameRoutes  # the coordinator's mailbox for tabs
    direct: DirectServer | None  # the provider's own endpoint for tabs
    chain: ChainReader | None  # None if claims are not verified on the chain

    @property
    def offered(self) -> dict[str, ServedModel]:
        return {name: served for name, served in self.served_models.items() if name in self.model_ids}


async def open_dependencies(
    config: DaemonConfig,
    stack: AsyncExitStack,
    journal: Journal,
    clock: Clock,
    transport: httpx.AsyncBaseTransport | None = None,
) -> DaemonDependencies:
    """Open all dependencies. Wait until the coordinator is reachable.

    Raise `Fatal` if the coordinator serves another deployment or rejects the provider.
    """
    timeout = httpx.Timeout(30, read=_OP_TIMEOUT_S)
    http = await stack.enter_async_context(
        open_client(transport=transport, base_url=config.coordinator_url, timeout=timeout)
    )
    to_coordinator = open_transport(http, clock)
    deployment = await _read_deployment(config, to_coordinator)
    signer = OpSigner(config.wallet, Domains.of(deployment))
    coordinator = Coordinator(to_coordinator, provider_sessions(to_coordinator, signer))
    session = await _sign_in(coordinator, signer)
    await journal.bind_to_market(JournalBinding(deployment.chain_id, hex_of(deployment.job_registry), signer.address))
    model_ids = await _read_model_ids(config, coordinator)
    slots = Slots(config.slots)
    return DaemonDependencies(
        config=config,
        clock=clock,
        journal=journal,
        coordinator=coordinator,
        signer=signer,
        address_book=deployment,
        provider_id=session.provider_id,
        model_ids=model_ids,
        gateways=PayloadGateways(
            Gateways(http, config.gateways, config.gateway_attempts, config.gateway_pause_seconds)
        ),
        slots=slots,
        mailbox=TabRoutes(to_coordinator, coordinator.sessions.authorised),
        direct=stack.enter_context(open_server(config.tabs)),
        chain=await _open_chain_reader(config, http, deployment, session.provider_id),
        served_models={
            model.name: await stack.enter_async_context(_open_model(model, slots, config.private_paths))
            for model in config.models
        },
    )


async def _read_deployment(config: DaemonConfig, transport: Transport) -> AddressBook:
    def report(error: Exception) -> None:
        log.warning("waiting for the coordinator", reason=str(error))

    # A malformed response may come from a proxy while the coordinator restarts.
    read = partial(read_deployment, transport)
    deployment = await retry(read, on=(Unavailable, Refused), max_wait_s=_MAX_RETRY_PAUSE_S, report=report)
    if config.addresses is not None:
        differences = config.addresses.differences(deployment)
        if differences:
            raise Fatal(
                f"{config.coordinator_url} serves another deployment than addresses_file: {'; '.join(differences)}"
            )
    return deployment


async def _open_chain_reader(
    config: DaemonConfig, http: httpx.AsyncClient, deployment: AddressBook, provider_id: int
) -> ChainReader | None:
    """Return the reader of the provider's node. Raise `Fatal` for a node of another chain. Warn if no node answers."""
    if config.rpc_url is None:
        return None
    chain = ChainReader(http, config.rpc_url, deployment, provider_id)
    try:
        found = await chain.chain_id()
    except Unavailable as error:
        log.warning("the node does not answer: jobs that are claimed wait for it", reason=str(error))
        return chain
    if found != deployment.chain_id:
        raise Fatal(f"rpc_url is a node of chain {found}, but the market is on chain {deployment.chain_id}")
    return chain


async def _sign_in(coordinator: Coordinator, signer: OpSigner) -> ProviderSession:
    def report(error: Exception) -> None:
        log.warning("waiting for a session", reason=str(error))

    async def sign_in_once() -> ProviderSession:
        session = await sign_in(coordinator.sessions)
        if isinstance(session, ProviderSession):
            log.info("signed in", provider_id=session.provider_id, expires_at=session.session.expires_at)
            return session
        if session.is_permanent:
            raise Fatal(f"the coordinator rejected the sign-in of {signer.address}: {session.operator_message}")
        raise Unavailable(session.detail)

    return await retry(sign_in_once, on=Unavailable, max_wait_s=_MAX_RETRY_PAUSE_S, report=report)


async def _read_model_ids(config: DaemonConfig, coordinator: Coordinator) -> dict[str, int]:
    def report(error: Exception) -> None:
        log.warning("waiting for the catalogue", reason=str(error))

    known = await retry(
        coordinator.read_model_ids, on=(Unavailable, Refused), max_wait_s=_MAX_RETRY_PAUSE_S, report=report
    )
    for name in sorted(config.slots.keys() - known.keys()):
        log.warning("this model is not in the catalogue, and is not offered until it is", model=name)
    return known


@asynccontextmanager
async def _open_model(model: ModelConfig, slots: Slots, private_paths: Sequence[Path]) -> AsyncIterator[ServedModel]:
    async with (
        open_backend(model.backend, private_paths) as backend,
        open_load(
            model.load, model=model.name, slots=model.slots, in_flight=lambda: slots.held_for(model.name)
        ) as load,
    ):
        discount = Discount(model.name, model.discount_percent)
        yield ServedModel(model, backend, load, Breaker(), discount)
