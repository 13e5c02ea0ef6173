"""Planned faults when they are due, their plan by seed, and the processes that are still alive."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from tests.simulation.plan import OF_SVCD, Ending, Fault, Kill, Plan, Post
from tests.simulation.trace import Trace

# Faults that replace a response. With `lost` and `hang_after` the request takes effect, but the response is lost.
_ANY: Final = ("unreached", "lost", "hang", "hang_after", "late", "busy", "gateway", "refused")
PLACES: Final[dict[str, tuple[str, ...]]] = {
    "node": _ANY,
    "send": (*_ANY, "known", "full", "forgotten"),
    "statement": ("before", "after"),
    "commit": ("before", "after"),
    "request": ("unreached", "lost", "late"),
    "store": ("unreached", "lost", "unavailable", "late", "wrong"),
}
# Duration in seconds. For reorgs, depth in blocks.
WEATHER: Final[dict[str, tuple[str, ...]]] = {
    "reorg": ("back", "some", "some", "few", "gone", "behind"),
    "node_away": ("for a time",),
    "database_away": ("for a time",),
    "blocks": ("for a time",),
    "fees": ("for a time",),
    "outside": ("once",),
    "shut_out": ("for a time",),
}


class Faults:
    """`owner` returns the life that causes an action. `is_live` says if this life is still current."""

    def __init__(self, plan: Plan, trace: Trace) -> None:
        self.trace = trace
        self.met = 0
        self.owner: Callable[[], object] = lambda: None
        self.is_live: Callable[[object], bool] = lambda owner: True
        faults = sorted(plan.faults, key=lambda fault: fault.at)
        self._waiting = {place: deque(f for f in faults if f.place == place) for place in PLACES}
        self.weather = [fault for fault in faults if fault.place in WEATHER]
        self._noisy = plan.noisy

    def noisy(self) -> bool:
        return asyncio.get_running_loop().time() < self._noisy

    def due(self, place: str) -> Fault | None:
        """Return the next due fault for this place. Each fault occurs once."""
        waiting, now = self._waiting[place], asyncio.get_running_loop().time()
        if not waiting or waiting[0].at > now or now > self._noisy:
            return None
        self.met += 1
        return waiting.popleft()


_OFTEN: Final = ("send", "send", "node", "statement", "commit", "request", *("reorg",) * 6)
_WINDOWS: Final = (60, 300, 300, 300)
_DEEPEST: Final = 50


def planned(seed: int) -> Plan:
    chance = random.Random(f"coordinators {seed}")
    noisy = float(round(chance.uniform(30, 90)))

    def at() -> float:
        return round(chance.uniform(0, noisy), 1)

    posts = [Post(at(), chance.choice(_WINDOWS), length=chance.choice((20, 800)))]
    while len(posts) < 9 and chance.random() < 0.85:
        posts.append(Post(at(), chance.choice(_WINDOWS), length=chance.choice((20, 800))))
    if chance.random() < 0.4:
        posts.append(Post(at(), 300, length=20, lines=chance.randint(2, 5)))
    endings: tuple[Ending, ...] = ("kill", "kill", "kill", "stop")
    coordinators = chance.choice((1, 2))
    kills = [
        Kill(at(), int(chance.expovariate(0.02)), chance.choice(endings), chance.randrange(coordinators))
        for _ in range(chance.choice((0, 1, 2, 4)))
    ]
    faults = [_fault(chance, at()) for _ in range(chance.choice((0, 4, 10, 20)))]
    posts.append(Post(noisy + 5.0, 300))
    sealed, ends = _of_svcd(random.Random(f"svcd {seed}"), noisy)
    return Plan(
        seed,
        noisy,
        tuple(sorted([*posts, *sealed], key=lambda each: each.at)),
        tuple(sorted([*kills, *ends], key=lambda each: each.at)),
        tuple(sorted(faults, key=lambda each: each.at)),
        coordinators,
    )


def _of_svcd(chance: random.Random, noisy: float) -> tuple[list[Post], list[Kill]]:
    """Plan for svcd. In half of the seeds a real svcd takes part, and clients buy from it. Plans their orders and its
    crashes."""
    if chance.random() < 0.5:
        return [], []

    def bought(at: float) -> Post:
        length = chance.choice((20, 800, 3500))
        return Post(at, chance.choice(_WINDOWS), is_bid=chance.random() < 0.4, length=length, sealed=True)

    posts = [bought(round(chance.uniform(0, noisy), 1)) for _ in range(chance.randint(1, 5))]
    posts.append(attrs.evolve(bought(noisy + 6.0), window=300))
    endings: tuple[Ending, ...] = ("kill", "power cut", "stop")
    kills = [  # during its jobs
        Kill(round(chance.choice(posts[:-1]).at + chance.uniform(0, 20), 1), how=chance.choice(endings), of=OF_SVCD)
        for _ in range(chance.choice((0, 1, 2, 4)))
    ]
    kills = [attrs.evolve(kill, at=min(kill.at, noisy), step=int(chance.expovariate(0.2))) for kill in kills]
    return posts, kills


def _fault(chance: random.Random, at: float) -> Fault:
    place = chance.choice((*PLACES, *WEATHER, *_OFTEN))
    kind = chance.choice((PLACES | WEATHER)[place])
    if place == "reorg":
        return Fault(at, place, kind, float(min(_DEEPEST, 1 + int(chance.expovariate(0.2)))))
    if place == "shut_out":
        return Fault(at, place, kind, round(chance.uniform(10, 40), 1))
    if place in WEATHER:
        return Fault(at, place, kind, round(chance.uniform(1, 20), 1))
    return Fault(at, place, kind, round(chance.uniform(0.2, 20), 1))
