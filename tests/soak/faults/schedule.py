"""Kinds of faults, and their schedule, decided by a seed so that a failing run can be repeated."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from random import Random
from typing import Final

import anyio
import attrs

from devnet.errors import DevnetError
from tests.soak.faults import chain, database, processes, rpc, stores
from tests.soak.faults.processes import Strike, UncleanExit, killed_after, killed_at_entry, killed_before
from tests.soak.ground import Ground
from tests.soak.timeline import Timeline


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


# Kinds that restart the same process run one after the other.
_PROCESSES: Final = frozenset(
    {
        *(kind for kind in KINDS if kind.startswith("killed_")),
        *("coordinator_killed", "coordinator_restarted", "provider_killed", "provider_restarted", "store_killed"),
    }
)


# Services broken by the kinds in a crowded lane, by prefix of their names. All other kinds are faults of the chain.
_SERVICES: Final = {
    "coordinators": ("killed_", "coordinator_"),
    "providers": ("provider_", "machine_clock", "descriptors_"),
    "store": ("store_", "wrong_cid"),
    "database": ("database_", "pool_", "connections_", "backends_"),
    "nodes": ("rpc_", "nodes_"),
}
_CHAIN: Final = "chain"
# It erases most of the run, so it would leave little to check if it came in every turn of a crowded lane.
_RARE: Final = frozenset({"reorg_beyond_journal"})
_RARE_EVERY: Final = 4  # turns of a crowded lane
SHORTENED: Final = 0.5  # of a kind's usual seconds, in crowded lanes
_LEAST_PAUSE_SHARE: Final = 0.25  # of the mean pause: shortest pause of a late lane between two faults


@attrs.frozen
class Lane:
    """`every`: mean seconds from the end of one fault to the start of the next; in a crowded lane, which has `crowded`,
    from start to start."""

    kinds: Sequence[str]
    seed: str
    every: float
    crowded: bool = False


@attrs.frozen
class Planned:
    """`random` decides what the strike leaves open, such as process or depth. It belongs to this strike, so its use
    does not affect later strikes."""

    kind: str
    pause: float  # seconds before it
    seconds: float  # duration
    random: Random = attrs.field(eq=False)


def lanes(kinds: Iterable[str], seed: int | str, every: float) -> list[Lane]:
    chosen = list(kinds)
    processes = [kind for kind in chosen if kind in _PROCESSES]
    others = [kind for kind in chosen if kind not in _PROCESSES]
    return [Lane(lane, f"{seed}/{n}", every) for n, lane in enumerate((others, processes)) if lane]


def crowded_lanes(kinds: Iterable[str], seed: int | str, every: float) -> list[Lane]:
    """Return lanes that together start a fault every `every` seconds on average."""
    by_service: dict[str, list[str]] = {}
    for kind in kinds:
        by_service.setdefault(_service_of(kind), []).append(kind)
    count = len(by_service)
    return [Lane(lane, f"{seed}/{name}", every * count, crowded=True) for name, lane in by_service.items()]


def _service_of(kind: str) -> str:
    return next((name for name, begins in _SERVICES.items() if kind.startswith(begins)), _CHAIN)


def planned(lane: Lane) -> Iterator[Planned]:
    """Yield every kind of the lane in random order, repeatedly and forever."""
    order = Random(lane.seed)  # noqa: S311 - to be foreseen is its purpose
    share = SHORTENED if lane.crowded else 1.0
    for turn in count():
        for place, name in enumerate(order.sample(lane.kinds, len(lane.kinds))):
            if lane.crowded and name in _RARE and turn % _RARE_EVERY:
                continue
            own = Random(f"{lane.seed}/{turn}/{place}")  # noqa: S311 - the same
            kind = KINDS[name]
            pause, seconds = own.expovariate(1 / lane.every), own.uniform(kind.least, kind.most)
            yield Planned(name, pause, seconds * share, own)


async def strike_until_cancelled(ground: Ground, lane: Lane, timeline: Timeline) -> None:
    due = anyio.current_time()
    for strike in planned(lane):
        pause = strike.pause
        if lane.crowded:
            due += pause
            pause = max(due - anyio.current_time(), _LEAST_PAUSE_SHARE * pause)
        await anyio.sleep(pause)
        since = timeline.now
        # Undo a started strike before the run ends, because the verdict needs working services.
        with anyio.CancelScope(shield=True), timeline.fault(strike.kind):
            try:
                await KINDS[strike.kind].strike(ground, strike.random, strike.seconds)
            except (UncleanExit, DevnetError) as broken:
                timeline.complain(str(broken))
            except Exception as failed:
                timeline.finished("fault", since, f"{strike.kind}: {type(failed).__name__}")
