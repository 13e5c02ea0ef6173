"""Open the escrow of the configured ESCROW_MODE, and wipe the escrow's keys at the end."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import attrs

from common.domains import Domains
from coordinatord.api.escrow.custody import StaticCustody
from coordinatord.api.escrow.development import MockCustody, MockSettings
from coordinatord.api.escrow.handover import HandoverService, OperatorKeys
from coordinatord.api.escrow.hosting import Escrow
from coordinatord.api.escrow.keys import KeyPair
from coordinatord.api.escrow.peer import open_peer
from coordinatord.base.clock import Clock
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.chain.rpc.client import Rpc
from coordinatord.run.config import Config
from coordinatord.storage.database.connections import Database


@attrs.frozen(slots=True)
class EscrowDependencies:
    """Services that an escrow of ESCROW_MODE=mock uses."""

    domains: Domains
    database: Database
    rpc: Rpc
    providers: ProviderRegistry


@asynccontextmanager
async def open_escrow(config: Config, dependencies: EscrowDependencies, clock: Clock) -> AsyncIterator[Escrow | None]:
    """Yield the escrow, or None with ESCROW_MODE=off. Call `custody.acquire_first_key()` before serving."""
    if config.escrow_mode == "off":
        yield None
        return
    async with AsyncExitStack() as stack:
        escrow = (
            _static_escrow(config)
            if config.escrow_mode == "static"
            else await _mock_escrow(config, dependencies, clock, stack)
        )
        stack.callback(escrow.custody.wipe_keys)
        yield escrow


def _static_escrow(config: Config) -> Escrow:
    keys = tuple(KeyPair.from_operator_key(bytes.fromhex(key.reveal())) for key in config.operator_keys)
    return Escrow(StaticCustody(keys, config.release_ordinal), None)


async def _mock_escrow(config: Config, dependencies: EscrowDependencies, clock: Clock, stack: AsyncExitStack) -> Escrow:
    release = config.release_ordinal
    operators = OperatorKeys.from_keys(dependencies.domains, config.operator_keys)
    peer = None
    if config.peer_url is not None:
        peer = await stack.enter_async_context(open_peer(config.peer_url, operators, release, clock))
    settings = MockSettings(
        release_ordinal=release,
        rotate_every_ms=config.escrow_rotate_interval_ms,
        sweep_every_ms=config.escrow_sweep_interval_ms,
        sync_every_s=config.peer_sync_s,
        first_pull_required=config.peer_required,
        clock_offset_ms=config.escrow_clock_offset_ms,
    )
    custody = MockCustody(settings, dependencies.database, dependencies.rpc, peer, clock)
    return Escrow(custody, HandoverService(operators, dependencies.providers, custody.held_generations, release, clock))
