"""Which fault strikes when: decided by a seed, so that a run that broke something can be made again.

Two lanes strike independently, so that a process may die while the chain is being reorganised. Within a lane one fault
ends before the next begins.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

import anyio
import attrs

from devnet.trouble import Trouble
from tests.soak.faults.kinds import KINDS
from tests.soak.faults.processes import UncleanExit
from tests.soak.ground import Ground
from tests.soak.timeline import Timeline

_PROCESSES: Final = frozenset(
    {"coordinator_killed", "coordinator_restarted", "provider_killed", "provider_restarted", "store_killed"}
)


@attrs.frozen
class Lane:
    kinds: Sequence[str]
    random: Random


def lanes(kinds: Iterable[str], seed: int) -> list[Lane]:
    processes = [kind for kind in kinds if kind in _PROCESSES]
    others = [kind for kind in kinds if kind not in _PROCESSES]
    return [Lane(lane, Random(f"{seed}/{n}")) for n, lane in enumerate((others, processes)) if lane]  # noqa: S311 - to be foreseen is its purpose


async def strike_until_cancelled(ground: Ground, lane: Lane, every: float, timeline: Timeline) -> None:
    """Every kind of the lane once in a random order, then again in another."""
    while True:
        for name in lane.random.sample(lane.kinds, len(lane.kinds)):
            await anyio.sleep(lane.random.expovariate(1 / every))
            kind = KINDS[name]
            seconds = lane.random.uniform(kind.least, kind.most)
            # A strike that began is taken back before the run ends: what it broke must be whole for the verdict.
            with anyio.CancelScope(shield=True), timeline.fault(name):
                try:
                    await kind.strike(ground, lane.random, seconds)
                except (UncleanExit, Trouble) as broken:
                    timeline.complain(str(broken))
