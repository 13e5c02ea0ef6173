"""Who takes how many lines of a batch: cheapest first, equal prices in turns, nobody above the room it has."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import attrs


@attrs.frozen(slots=True)
class Bidder:
    """A provider that takes a model at a price. Of equal prices, the one that stands first in a list begins."""

    provider_id: int
    cost: int  # of the model's whole mix of units


@attrs.frozen(slots=True)
class Wanted:
    """Lines of one model, and who would take them, in the order in which equals take turns."""

    lines: int
    bidders: Sequence[Bidder]


def allocate(wanted: Sequence[Wanted], room: Mapping[int, int]) -> list[dict[int, int]]:
    """For each model, lines by provider; in order of price, without those that get none.

    `room` is how many jobs each provider can take, over all models: what an earlier model takes, a later one lacks.
    """
    left = dict(room)
    return [_fill(one, left) for one in wanted]


def _fill(wanted: Wanted, left: dict[int, int]) -> dict[int, int]:
    taken: dict[int, int] = {}
    lines = wanted.lines
    for _, equals in groupby(sorted(wanted.bidders, key=lambda bidder: bidder.cost), key=lambda bidder: bidder.cost):
        turns = take_turns(lines, {bidder.provider_id: left[bidder.provider_id] for bidder in equals})
        for provider_id, share in turns.items():
            left[provider_id] -= share
            lines -= share
        taken |= {provider_id: share for provider_id, share in turns.items() if share}
    return taken


def take_turns(lines: int, room: Mapping[int, int]) -> dict[int, int]:
    """What each gets when all take one line in turn, in order, until there are no lines or no room.

    Counted by rounds instead of lines: whoever has the least room is full after as many whole rounds.
    """
    taken = dict.fromkeys(room, 0)
    while lines and (open_to := [provider for provider in room if taken[provider] < room[provider]]):
        rounds = min(lines // len(open_to), *(room[provider] - taken[provider] for provider in open_to))
        if rounds:
            for provider in open_to:
                taken[provider] += rounds
            lines -= rounds * len(open_to)
        else:  # less than a round is left
            for provider in open_to[:lines]:
                taken[provider] += 1
            lines = 0
    return taken
