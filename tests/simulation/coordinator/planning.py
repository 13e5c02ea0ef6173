"""Plans of seeds: from quiet histories to those where most of what can go wrong does."""

import random
from typing import Final

from tests.simulation.coordinator.faults import PLACES, WEATHER
from tests.simulation.plan import Ending, Fault, Kill, Plan, Post

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
    return Plan(
        seed,
        noisy,
        tuple(sorted(posts, key=lambda each: each.at)),
        tuple(sorted(kills, key=lambda each: each.at)),
        tuple(sorted(faults, key=lambda each: each.at)),
        coordinators,
    )


def _fault(chance: random.Random, at: float) -> Fault:
    place = chance.choice((*PLACES, *WEATHER, *_OFTEN))
    kind = chance.choice((PLACES | WEATHER)[place])
    if place == "reorg":
        return Fault(at, place, kind, float(min(_DEEPEST, 1 + int(chance.expovariate(0.2)))))
    if place in WEATHER:
        return Fault(at, place, kind, round(chance.uniform(1, 20), 1))
    return Fault(at, place, kind, round(chance.uniform(0.2, 20), 1))
