"""How much gas a wallet may use per day, depending on its settled jobs."""

import attrs
import pytest

from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.chain.relayer.budgets_sql import Budget, GasLimits, Standing

POLICY = GasPolicy(
    posts_daily_gas=1000,
    work_daily_gas=2000,
    upkeep_daily_gas=500,
    unlisted_upkeep_daily_gas=100,
    newcomers_daily_gas=9000,
    daily_gas_per_settled_job=50,
    hourly_percent=40,
)
NEW = Standing(settled_jobs=0, is_listed=False, block_number=1, open_amounts=0, unindexed_amounts=0)
ALL = (3600, 9000)


@pytest.mark.parametrize(
    ("budget", "standing", "limits"),
    [
        (Budget.POSTS, NEW, (400, 1000, ALL)),
        (Budget.POSTS, attrs.evolve(NEW, is_listed=True), (400, 1000, ALL)),
        (Budget.POSTS, attrs.evolve(NEW, settled_jobs=9), (850, 1450, ALL)),
        (Budget.POSTS, attrs.evolve(NEW, settled_jobs=10), (600, 750, None)),
        (Budget.POSTS, attrs.evolve(NEW, settled_jobs=40), (2400, 3000, None)),
        (Budget.POSTS, attrs.evolve(NEW, settled_jobs=50), (2900, 3500, None)),
        (Budget.CANCELS, NEW, (200, 500, ALL)),
        (Budget.CANCELS, attrs.evolve(NEW, settled_jobs=10), (300, 375, None)),
        (Budget.WORK, NEW, (800, 2000, None)),
        (Budget.WORK, attrs.evolve(NEW, settled_jobs=10, is_listed=True), (1300, 2500, None)),
        (Budget.UPKEEP, NEW, (40, 100, ALL)),
        (Budget.UPKEEP, attrs.evolve(NEW, is_listed=True, settled_jobs=10), (200, 500, None)),
        (Budget.UPKEEP, attrs.evolve(NEW, settled_jobs=9), (40, 100, ALL)),
        (Budget.UPKEEP, attrs.evolve(NEW, settled_jobs=10), (40, 100, None)),
    ],
)
def test_limits_grow_with_settled_jobs_and_newcomers_share_one(
    budget: Budget, standing: Standing, limits: tuple[int, int, tuple[int, int] | None]
) -> None:
    assert POLICY.limits_for(budget, standing) == GasLimits(budget, *limits)


def test_zero_is_no_limit() -> None:
    free = attrs.evolve(POLICY, posts_daily_gas=0, newcomers_daily_gas=0)
    assert free.limits_for(Budget.POSTS, NEW) == GasLimits(Budget.POSTS, None, None, None)
