"""Every kind of fault, by the name that options, reports and plots call it."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import attrs

from tests.soak.faults import chain, processes, rpc, stores
from tests.soak.ground import Ground

Strike = Callable[[Ground, Random, float], Awaitable[None]]


@attrs.frozen
class Kind:
    """`strike(ground, random, seconds)` makes the trouble, keeps it up for about `seconds`, and takes it away."""

    strike: Strike
    least: float = 1.0  # seconds
    most: float = 6.0


KINDS: Final[dict[str, Kind]] = {
    "rpc_error": Kind(rpc.errors),
    "rpc_hang": Kind(rpc.hang),
    "rpc_swallowed": Kind(rpc.swallowed),
    "rpc_truncated": Kind(rpc.truncated),
    "rpc_lies": Kind(rpc.lies),
    "reorg": Kind(chain.reorganised, 0, 0),
    "fee_spike": Kind(chain.fee_spike, 3, 8),
    "foreign_transaction": Kind(chain.foreign_transaction, 0, 0),
    "relayer_empty": Kind(chain.relayer_empty, 2, 8),
    "chain_clock": Kind(chain.clock_ahead, 0, 0),
    "token_paused": Kind(chain.token_paused),
    "store_trouble": Kind(stores.store_trouble),
    "store_killed": Kind(stores.store_killed),
    "database_cut": Kind(stores.database_cut, 0, 2),
    "database_restart": Kind(stores.database_restart, 0, 3),
    "coordinator_killed": Kind(processes.coordinator_killed, 0, 3),
    "coordinator_restarted": Kind(processes.coordinator_restarted, 0, 1),
    "machine_clock": Kind(processes.machine_clock, 2, 8),
    "provider_killed": Kind(processes.provider_killed, 0, 3),
    "provider_restarted": Kind(processes.provider_restarted, 0, 1),
}
