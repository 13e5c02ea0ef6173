"""Schedule of faults, decided by a seed so that a failing run can be repeated."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from random import Random
from typing import Final

import anyio
import attrs

from devnet.errors import DevnetError
from tests.soak.faults.kinds import KINDS
from tests.soak.faults.processes import UncleanExit
from tests.soak.ground import Ground
from tests.soak.timeline import Timeline

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
