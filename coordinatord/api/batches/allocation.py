"""Allocation of lines to providers: cheapest first, equal prices in turns, up to each provider's room."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import attrs


@attrs.frozen(slots=True)
class Bidder:
    """Provider that takes a model at a price. At equal prices, the first in the list begins."""

    provider_id: int
    cost: int  # for all units of the model's lines


@attrs.frozen(slots=True)
class LineDemand:
    """Lines of one model, and the providers that would take them, in the order in which equal prices take turns."""

    lines: int
    bidders: Sequence[Bidder]


def allocate(wanted: Sequence[LineDemand], room: Mapping[int, int]) -> list[dict[int, int]]:
    """Return for each model its lines by provider, in order of price, without providers that get none.

    `room` is how many jobs each provider can take over all models, so an earlier model leaves less to a later one.
    """
    left = dict(room)
    return [_fill(one, left) for one in wanted]


def _fill(wanted: LineDemand, left: dict[int, int]) -> dict[int, int]:
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
    """Return the lines of each provider when all take one line in turn until no line or no room is left.

    The loop counts whole rounds instead of lines: after as many rounds as its room, the smallest provider is full.
    """
    taken = dict.fromkeys(room, 0)
    while lines and (open_to := [provider for provider in room if taken[provider] < room[provider]]):
        rounds = min(lines // len(open_to), *(room[provider] - taken[provider] for provider in open_to))
        if rounds:
            for provider in open_to:
                taken[provider] += rounds
            lines -= rounds * len(open_to)
        else:  # the last, incomplete round
            for provider in open_to[:lines]:
                taken[provider] += 1
            lines = 0
    return taken
