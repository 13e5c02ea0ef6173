"""Shrink a failing plan: drop parts one by one while it still fails, then shorten the time."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs

from tests.simulation.plan import Plan

_SHORTER: Final = 0.6


def shrunk(plan: Plan, fails: Callable[[Plan], bool], patience: int = 400) -> Plan:
    """`fails` runs a plan, at most `patience` times."""
    asked = 0
    again = True
    while again:
        again = False
        for smaller in _smaller(plan):
            if asked >= patience:
                return plan
            asked += 1
            if fails(smaller):
                plan, again = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield smaller plans, largest steps first: half of the faults, single faults, kills, orders, and the noisy
    time."""
    half = len(plan.faults) // 2
    if half > 1:
        yield attrs.evolve(plan, faults=plan.faults[half:])
        yield attrs.evolve(plan, faults=plan.faults[:half])
    for at in range(len(plan.faults)):
        yield attrs.evolve(plan, faults=plan.faults[:at] + plan.faults[at + 1 :])
    for at in range(len(plan.kills)):
        yield attrs.evolve(plan, kills=plan.kills[:at] + plan.kills[at + 1 :])
    for at in range(len(plan.posts)):
        yield attrs.evolve(plan, posts=plan.posts[:at] + plan.posts[at + 1 :])
    for at, kill in enumerate(plan.kills):
        if kill.how != "kill":
            changed = attrs.evolve(kill, how="kill")
            yield attrs.evolve(plan, kills=(*plan.kills[:at], changed, *plan.kills[at + 1 :]))
    used = max(1.0, 1.0, *(kill.at + 1 for kill in plan.kills), *(fault.at + 1 for fault in plan.faults))
    if used < plan.noisy:
        yield attrs.evolve(plan, noisy=used)
    yield from _sooner(plan)


def _sooner(plan: Plan) -> Iterator[Plan]:
    if plan.noisy > 20:

        def scaled(at: float) -> float:
            return round(at * _SHORTER, 1)

        yield attrs.evolve(
            plan,
            noisy=scaled(plan.noisy),
            posts=tuple(attrs.evolve(each, at=scaled(each.at)) for each in plan.posts),
            kills=tuple(attrs.evolve(each, at=scaled(each.at)) for each in plan.kills),
            faults=tuple(attrs.evolve(each, at=scaled(each.at)) for each in plan.faults),
        )


def kinds_of(broken: Iterable[str]) -> set[str]:
    """Return the broken promises without job numbers and content ids. A plan that breaks others fails differently."""
    return {" ".join(word for word in found.split()[:9] if not any(map(str.isdigit, word))) for found in broken}
