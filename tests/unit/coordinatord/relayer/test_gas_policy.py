"""What a wallet may cause in a day, by what it has earned."""

import attrs
import pytest

from coordinatord.config import read_config
from coordinatord.relayer.budgets import GasPolicy, gas_estimate
from coordinatord.relayer.budgets_sql import Budget, GasLimits, Standing
from coordinatord.relayer.outbox_sql import RelayKind
from tests.unit.coordinatord.environment import ENVIRONMENT

POLICY = GasPolicy(
    posts=1000, work=2000, upkeep=500, unlisted_upkeep=100, newcomers=9000, per_settled=50, hourly_percent=40
)
NEW = Standing(settled=0, listed=False, position=1, open_amounts=0, unindexed=0)
ALL = (3600, 9000)


@pytest.mark.parametrize(
    ("budget", "standing", "limits"),
    [
        (Budget.POSTS, NEW, (400, 1000, ALL)),
        (Budget.POSTS, attrs.evolve(NEW, settled=10), (900, 1500, None)),
        (Budget.CANCELS, NEW, (200, 500, ALL)),
        (Budget.CANCELS, attrs.evolve(NEW, settled=10), (450, 750, None)),
        (Budget.WORK, NEW, (800, 2000, None)),
        (Budget.WORK, attrs.evolve(NEW, settled=10, listed=True), (1300, 2500, None)),
        (Budget.UPKEEP, NEW, (40, 100, ALL)),
        (Budget.UPKEEP, attrs.evolve(NEW, listed=True, settled=10), (200, 500, None)),
    ],
)
def test_limits_grow_with_settled_jobs_and_newcomers_share_one(
    budget: Budget, standing: Standing, limits: tuple[int, int, tuple[int, int] | None]
) -> None:
    assert POLICY.limits(budget, standing) == GasLimits(budget, *limits)


def test_zero_is_no_limit() -> None:
    free = attrs.evolve(POLICY, posts=0, newcomers=0)
    assert free.limits(Budget.POSTS, NEW) == GasLimits(Budget.POSTS, None, None, None)


def test_defaults_are_what_the_readme_says_of_them() -> None:
    policy = GasPolicy.of(read_config(ENVIRONMENT))
    new = policy.limits(Budget.POSTS, NEW)
    assert new.day is not None
    assert new.hour is not None
    assert (new.day // gas_estimate(RelayKind.POST), new.hour // gas_estimate(RelayKind.POST)) == (133, 66)
    earned = policy.limits(Budget.POSTS, attrs.evolve(NEW, settled=10))
    assert earned.day is not None
    assert (earned.day - new.day) // gas_estimate(RelayKind.POST) == 33
    full_identity = gas_estimate(RelayKind.SET_IDENTITY, 32_768 + 300)
    assert policy.unlisted_upkeep // full_identity == 1
    assert policy.newcomers // gas_estimate(RelayKind.POST) == 13_333
