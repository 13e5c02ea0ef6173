"""Plans by seed: from few faults to most of the possible ones."""

import random
from typing import Final

import attrs

from tests.simulation.coordinator.faults import PLACES, WEATHER
from tests.simulation.plan import OF_SVCD, Ending, Fault, Kill, Plan, Post

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
