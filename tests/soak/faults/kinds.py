"""Every kind of fault, with its name in options and reports."""

from typing import Final

import attrs

from tests.soak.faults import chain, database, processes, rpc, stores
from tests.soak.faults.processes import Strike, killed_after, killed_at_entry, killed_before


@attrs.frozen
class Kind:
    """`strike(ground, random, seconds)` causes the fault, keeps it up for about `seconds`, and removes it."""

    strike: Strike
    least: float = 1.0  # seconds
    most: float = 6.0


KINDS: Final[dict[str, Kind]] = {
    "rpc_error": Kind(rpc.errors),
    "rpc_hang": Kind(rpc.hang),
    "rpc_swallowed": Kind(rpc.swallowed),
    "rpc_truncated": Kind(rpc.truncated),
    "rpc_lies": Kind(rpc.lies),
    "rpc_absurd_tips": Kind(rpc.absurd_tips),
    "nodes_disagree": Kind(rpc.disagreement),
    "nodes_down": Kind(rpc.nodes_down),
    "reorg": Kind(chain.reorganised, 0, 0),
    "reorg_beyond_journal": Kind(chain.reorganised_beyond_the_journal, 0, 0),
    "fee_spike": Kind(chain.fee_spike, 3, 8),
    "foreign_transaction": Kind(chain.foreign_transaction, 0, 0),
    "relayer_empty": Kind(chain.relayer_empty, 2, 8),
    "chain_clock": Kind(chain.clock_ahead, 0, 0),
    "token_paused": Kind(chain.token_paused),
    "owner_blacklisted": Kind(chain.owner_blacklisted),
    "store_trouble": Kind(stores.store_trouble),
    "wrong_cid": Kind(stores.wrong_cid),
    "store_killed": Kind(stores.store_killed),
    "database_cut": Kind(stores.database_cut, 0, 2),
    "database_restart": Kind(stores.database_restart, 0, 3),
    "database_killed": Kind(database.database_killed, 0, 2),
    "database_conflicts": Kind(database.conflicts),
    "database_full": Kind(database.disk_full),
    "pool_exhausted": Kind(database.pool_exhausted),
    "connections_exhausted": Kind(database.connections_exhausted, 1, 4),
    "database_read_only": Kind(database.read_only),
    "database_password": Kind(database.password_changed, 1, 4),
    "database_login": Kind(database.login_refused, 1, 4),
    "database_silent": Kind(database.silent),
    "backends_terminated": Kind(database.backends_terminated, 0, 0),
    "coordinator_killed": Kind(processes.coordinator_killed, 0, 3),
    "coordinator_restarted": Kind(processes.coordinator_restarted, 0, 1),
    "killed_before_persist": Kind(killed_before("eth_call"), 0, 1),
    "killed_after_persist": Kind(killed_at_entry("queued"), 0, 1),
    "killed_before_broadcast": Kind(killed_before("eth_sendRawTransaction"), 0, 1),
    "killed_after_broadcast": Kind(killed_after("eth_sendRawTransaction"), 0, 1),
    "killed_after_receipt": Kind(killed_after("eth_getTransactionReceipt"), 0, 1),
    "killed_before_reply": Kind(killed_at_entry("ended"), 0, 1),
    "machine_clock": Kind(processes.machine_clock, 2, 8),
    "descriptors_exhausted": Kind(processes.descriptors_exhausted, 1, 4),
    "provider_killed": Kind(processes.provider_killed, 0, 3),
    "provider_restarted": Kind(processes.provider_restarted, 0, 1),
}
