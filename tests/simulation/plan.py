"""Plans of a simulated run as values that can be dropped one by one and pasted into a test."""

import random
from typing import Final, Literal

import attrs

Ending = Literal["kill", "power cut", "stop"]
OF_SVCD: Final = -1


@attrs.frozen
class Post:
    """A client's order. `length` is the number of letters of its text, which the result repeats.

    Only svcd's simulation uses `requests` (of a tab), `items` (of a bundle), `block_in` and `refused`. The block of the
    post comes after `block_in` seconds. Until then, the job is offered as pending. With `refused`, the chain refuses
    the post and the claim. Only coordinatord's simulation uses `lines` (of a batch) and `sealed`. A sealed order is
    bought by a real client from a real svcd."""

    at: float
    window: int = 600
    is_bid: bool = False
    length: int = 40
    block_in: float = 0.0
    refused: bool = False
    lines: int = 0
    sealed: bool = False
    requests: int = 0
    items: int = 0


@attrs.frozen
class Kill:
    """End of a daemon, at its `step`th moment after `at`. Moments of svcd are requests, responses and disk writes.
    Moments of coordinatord are the steps of all tasks. `of` is the number of the coordinator, or OF_SVCD."""

    at: float
    step: int = 0
    how: Ending = "kill"
    of: int = 0


@attrs.frozen
class Fault:
    """A fault at the first call of `place` after `at`. If `place` is one of WEATHER, the fault lasts for `seconds`."""

    at: float
    place: str
    kind: str
    seconds: float = 0.0


@attrs.frozen
class Plan:
    """A simulated run. `seed` decides everything that the other fields do not: order of tasks, delays, keys. Faults end
    after `noisy` seconds."""

    seed: int
    noisy: float
    posts: tuple[Post, ...] = ()
    kills: tuple[Kill, ...] = ()
    faults: tuple[Fault, ...] = ()
    coordinators: int = 1

    @property
    def has_svcd(self) -> bool:
        """Return whether a real svcd takes part. For coordinatord's plans."""
        return any(post.sealed for post in self.posts)

    @property
    def parts(self) -> int:
        return len(self.posts) + len(self.kills) + len(self.faults)

    def __str__(self) -> str:
        """Return Python code that creates this plan."""
        several = f", coordinators={self.coordinators}" if self.coordinators != 1 else ""
        lines = [f"Plan(seed={self.seed}, noisy={self.noisy!r}{several}"]
        for name, parts in (("posts", self.posts), ("kills", self.kills), ("faults", self.faults)):
            if parts:
                lines[-1] += ","
                lines.append(f"    {name}=({', '.join(map(_short, parts))},)")
        return "\n".join([lines[0], *lines[1:]]) + (",\n)" if len(lines) > 1 else ")")


def _short(part: Post | Kill | Fault) -> str:
    given = [
        f"{field.name}={getattr(part, field.name)!r}"
        for field in attrs.fields(type(part))
        if getattr(part, field.name) != field.default
    ]
    return f"{type(part).__name__}({', '.join(given)})"


# Faults that replace a response. With `lost` and `hang_after` the request takes effect, but the response is lost. With
# `later`, the coordinator has sent the op, the receipt is missing, and the op is mined `seconds` later. With `never` it
# is not mined.
_ANY: Final = ("unreached", "lost", "unavailable", "busy", "proxy", "hang", "hang_after", "late")
_OPS: Final = ("later", "never")
PLACES: Final[dict[str, tuple[str, ...]]] = {
    "claim": _ANY + _OPS,
    "settle": _ANY + _OPS,
    "fail": _ANY + _OPS,
    "release": _ANY,
    "poll": _ANY,
    "job": _ANY,
    "claimed": _ANY,
    "nonce": _ANY,
    "session": _ANY,
    "files": (*_ANY, "lapsed"),
    "fetch": ("unreached", "missing", "garbled", "late", "hang"),
    "run": ("slow", "exhausted", "crash"),
    "sessions": ("forgotten",),
}
# Temporary faults: a stopped index, a full disk, an unreachable coordinator, claims or settles removed by a reorg.
WEATHER: Final = ("index", "disk", "coordinator", "claim_reorg", "settle_reorg")
_OFTEN: Final = ("claim", "settle", "settle", "job", "claimed", "fail", "index", "claim_reorg", "settle_reorg", "files")


def planned(seed: int) -> Plan:
    """Return the plan of a seed, from few faults to most of the possible ones."""
    chance = random.Random(f"plan {seed}")
    noisy = float(round(chance.uniform(80, 300)))

    def at() -> float:
        return round(chance.uniform(0, noisy), 1)

    posts = [Post(at(), chance.choice((120, 600)), chance.random() < 0.4, chance.choice((20, 800, 3500, 9000)))]
    while len(posts) < 8 and chance.random() < 0.75:
        posts.append(Post(at(), chance.choice((120, 600)), chance.random() < 0.4, chance.choice((20, 800, 3500, 9000))))
    endings: tuple[Ending, ...] = ("kill", "kill", "power cut", "power cut", "stop")
    kills = [
        Kill(at(), int(chance.expovariate(0.1)), chance.choice(endings)) for _ in range(chance.choice((0, 1, 2, 4)))
    ]
    faults = [_fault(chance, at()) for _ in range(chance.choice((0, 4, 12, 24)))]
    posts.append(Post(noisy + 30.0))
    return Plan(
        seed,
        noisy,
        tuple(
            sorted(
                _with_tabs(
                    random.Random(f"tabs {seed}"), _before_blocks(random.Random(f"blocks {seed}"), posts), noisy
                ),
                key=lambda each: each.at,
            )
        ),
        tuple(sorted(kills, key=lambda each: each.at)),
        tuple(sorted(faults, key=lambda each: each.at)),
    )


def _with_tabs(chance: random.Random, posts: list[Post], noisy: float) -> list[Post]:
    """Add tabs in half of the seeds, with a last one in the quiet, and a bundle in a quarter."""
    more = []
    if chance.random() < 0.5:
        for _ in range(chance.choice((1, 2, 3))):
            more.append(Post(round(chance.uniform(0, noisy), 1), requests=chance.choice((1, 3, 8))))
        more.append(Post(noisy + 40.0, requests=4))
    if chance.random() < 0.25:
        more.append(Post(round(chance.uniform(0, noisy), 1), items=chance.choice((2, 6))))
    return posts + more


def _before_blocks(chance: random.Random, posts: list[Post]) -> list[Post]:
    """In half of the seeds, offer several orders at a time before their blocks. The provider learns the owner from a
    first order, which is not early."""
    if chance.random() < 0.5:
        return posts
    first, last = attrs.evolve(posts[0], at=0.0), posts[-1]
    early = []
    for at in sorted(chance.uniform(30, max(31.0, last.at - 60)) for _ in range(chance.choice((1, 2, 3)))):
        for _ in range(chance.choice((1, 2, 4))):
            is_bid, length = chance.random() < 0.2, chance.choice((20, 800, 3500, 9000))
            wait, refused = round(chance.uniform(1, 70), 1), chance.random() < 0.2
            early.append(Post(round(at + chance.uniform(0, 9), 1), 600, is_bid, length, wait, refused))
    return [first, *early, attrs.evolve(last, block_in=round(chance.uniform(1, 20), 1))]


def _fault(chance: random.Random, at: float) -> Fault:
    place = chance.choice((*PLACES, *WEATHER, *_OFTEN))
    if place in WEATHER:
        return Fault(at, place, "for a time", round(chance.uniform(2, 50), 1))
    kind = chance.choice(PLACES[place])
    return Fault(at, place, kind, round(chance.uniform(1, 60), 1))
