"""Allocation of batch lines to providers, cheapest first. Providers of equal price share the lines in turn."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter


def allocate_lines(demands: Iterable[tuple[int, Mapping[int, int]]], room: Mapping[int, int]) -> list[dict[int, int]]:
    """Return the number of lines by provider for each model, cheapest provider first. Omit providers without lines.

    A demand is the number of lines of one model, and the cost of these lines at each provider. Providers of equal cost
    take turns, in the order of the demand's mapping. `room` is the number of jobs that each provider can take over all
    models, so earlier models leave less room for later models.
    """
    remaining = dict(room)
    return [_assign_lines(lines, costs, remaining) for lines, costs in demands]


def _assign_lines(lines: int, costs: Mapping[int, int], remaining: dict[int, int]) -> dict[int, int]:
    """Return the number of lines by provider for one model. Subtract these lines from the `remaining` room."""
    assigned: dict[int, int] = {}
    for _, equal_costs in groupby(sorted(costs.items(), key=itemgetter(1)), key=itemgetter(1)):
        shares = distribute_round_robin(lines, {provider_id: remaining[provider_id] for provider_id, _ in equal_costs})
        for provider_id, share in shares.items():
            if share:
                assigned[provider_id] = share
                remaining[provider_id] -= share
                lines -= share
    return assigned


def distribute_round_robin(lines: int, room: Mapping[int, int]) -> dict[int, int]:
    """Return how many lines each provider gets when all take one line in turn, until no line or no room is left.

    Each step of the loop assigns several rounds at once: as many as the provider with the least room allows.
    """
    assigned = dict.fromkeys(room, 0)
    while lines and (with_room := [provider for provider in room if assigned[provider] < room[provider]]):
        rounds = min(lines // len(with_room), *(room[provider] - assigned[provider] for provider in with_room))
        served = with_room if rounds else with_room[:lines]  # the last round is incomplete
        for provider in served:
            assigned[provider] += rounds or 1
        lines -= (rounds or 1) * len(served)
    return assigned
