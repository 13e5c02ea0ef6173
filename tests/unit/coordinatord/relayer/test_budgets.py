"""Budgets of a wallet: gas per day by its settled jobs, and payments that its token balance covers."""

from collections.abc import Sequence
from typing import cast

import attrs
import msgspec
import pytest

from coordinatord.chain.contracts.payment_token import PaymentToken
from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.chain.relayer.budgets_sql import Budget, GasLimits, Standing
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import PaymentPromise, RelayKind
from coordinatord.chain.relayer.solvency import SolvencyChecks
from coordinatord.chain.rpc.client import Rpc, RpcCall
from coordinatord.run.config import read_config
from coordinatord.run.constructors import gas_policy
from tests.unit.coordinatord.environment import ENVIRONMENT

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


def test_defaults_match_the_readme() -> None:
    policy = gas_policy(read_config(ENVIRONMENT))
    new = policy.limits_for(Budget.POSTS, NEW)
    assert new.daily_gas is not None
    assert new.hourly_gas is not None
    assert (new.daily_gas // gas_estimate(RelayKind.POST), new.hourly_gas // gas_estimate(RelayKind.POST)) == (133, 66)
    assert [_posts_a_day(policy, settled) for settled in (0, 9, 10, 40, 100)] == [133, 163, 66, 266, 466]
    full_identity = gas_estimate(RelayKind.SET_IDENTITY, 32_768 + 300)
    assert policy.unlisted_upkeep_daily_gas // full_identity == 1
    assert policy.newcomers_daily_gas // gas_estimate(RelayKind.POST) == 13_333
    assert [_gas_of_a_thousand(policy, settled) for settled in (0, 1, 9)] == [2 * 10**9] * 3
    assert [_gas_of_a_thousand(policy, settled) for settled in (10, 40)] == [15 * 10**9, 60 * 10**9]


def _posts_a_day(policy: GasPolicy, settled: int) -> int:
    limits = policy.limits_for(Budget.POSTS, attrs.evolve(NEW, settled_jobs=settled))
    assert limits.daily_gas is not None
    return limits.daily_gas // gas_estimate(RelayKind.POST)


def _gas_of_a_thousand(policy: GasPolicy, settled: int) -> int:
    """Return the daily gas limit of posts and cancels for 1,000 wallets together."""
    standing = attrs.evolve(NEW, settled_jobs=settled)
    limits = [policy.limits_for(budget, standing) for budget in (Budget.POSTS, Budget.CANCELS)]
    alone = 1000 * sum(each.daily_gas or 0 for each in limits)
    shared = limits[0].newcomers_gas
    return alone if shared is None else min(alone, shared[1])


OWNER = b"\x01" * 20
AT = 7


class Node:
    """A node that answers `balanceOf` at the index's block."""

    def __init__(self, balance: int) -> None:
        self.balance = balance
        self.asked = 0

    async def batch(self, calls: Sequence[RpcCall]) -> list[msgspec.Raw]:
        self.asked += 1
        assert [call.params[1] for call in calls] == [hex(AT)]
        return [msgspec.Raw(msgspec.json.encode(f"0x{self.balance:064x}"))]


def standing(*, open_amounts: int, unindexed_amounts: int = 0) -> Standing:
    return Standing(
        settled_jobs=0, is_listed=False, block_number=AT, open_amounts=open_amounts, unindexed_amounts=unindexed_amounts
    )


def promises(node: Node) -> SolvencyChecks:
    return SolvencyChecks(PaymentToken(cast(Rpc, node), b"\x02" * 20))


async def test_covered_amount_is_promised_without_a_read() -> None:
    node = Node(0)
    promise = await promises(node).promise_payment(standing(open_amounts=60, unindexed_amounts=10), OWNER, 30, 100)
    assert promise == PaymentPromise(30, 40, AT)
    assert node.asked == 0


async def test_unindexed_claim_does_not_count_against_its_owner() -> None:
    node = Node(100)  # after collecting 60 for a job that the index still shows as open
    promise = await promises(node).promise_payment(standing(open_amounts=60), OWNER, 40, 40)
    assert promise == PaymentPromise(40, 40, AT)


async def test_uncovered_amount_is_not_promised() -> None:
    assert await promises(Node(100)).promise_payment(standing(open_amounts=60), OWNER, 41, 40) is None
    assert (
        await promises(Node(0)).promise_payment(standing(open_amounts=60, unindexed_amounts=10), OWNER, 31, 100) is None
    )


async def test_unknown_balance_refuses_no_owner() -> None:
    assert await promises(Node(0)).promise_payment(standing(open_amounts=60), OWNER, 1, None) == PaymentPromise(1)
