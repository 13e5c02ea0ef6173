"""Which fault strikes when: decided by a seed, so that a run that broke something can be made again.

Two lanes strike independently, so that a process may die while the chain is being reorganised. Within a lane one fault
ends before the next begins.
"""

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

# What starts the same process: one after the other.
_PROCESSES: Final = frozenset(
    {
        *(kind for kind in KINDS if kind.startswith("killed_")),
        *("coordinator_killed", "coordinator_restarted", "provider_killed", "provider_restarted", "store_killed"),
    }
)


@attrs.frozen
class Lane:
    kinds: Sequence[str]
    seed: str


@attrs.frozen
class Planned:
    """`random` decides what the strike leaves open: which process, how deep. It is the strike's own, so that how often
    one draws says nothing about the next."""

    kind: str
    pause: float  # seconds before it
    seconds: float  # that it lasts
    random: Random = attrs.field(eq=False)


def lanes(kinds: Iterable[str], seed: int) -> list[Lane]:
    chosen = list(kinds)
    processes = [kind for kind in chosen if kind in _PROCESSES]
    others = [kind for kind in chosen if kind not in _PROCESSES]
    return [Lane(lane, f"{seed}/{n}") for n, lane in enumerate((others, processes)) if lane]


def planned(lane: Lane, every: float) -> Iterator[Planned]:
    """Without end: every kind of the lane once in a random order, then again in another."""
    order = Random(lane.seed)  # noqa: S311 - to be foreseen is its purpose
    for turn in count():
        for place, name in enumerate(order.sample(lane.kinds, len(lane.kinds))):
            own = Random(f"{lane.seed}/{turn}/{place}")  # noqa: S311 - the same
            kind = KINDS[name]
            yield Planned(name, own.expovariate(1 / every), own.uniform(kind.least, kind.most), own)


async def strike_until_cancelled(ground: Ground, lane: Lane, every: float, timeline: Timeline) -> None:
    for strike in planned(lane, every):
        await anyio.sleep(strike.pause)
        # A strike that began is taken back before the run ends: what it broke must be whole for the verdict.
        with anyio.CancelScope(shield=True), timeline.fault(strike.kind):
            try:
                await KINDS[strike.kind].strike(ground, strike.random, strike.seconds)
            except (UncleanExit, DevnetError) as broken:
                timeline.complain(str(broken))
