"""Solvency, with a token balance that is known at two blocks."""

from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from coordinatord.chain.contracts.payment_token import PaymentToken
from coordinatord.chain.relayer.budgets_sql import Standing
from coordinatord.chain.relayer.outbox_sql import PaymentPromise
from coordinatord.chain.relayer.solvency import SolvencyChecks
from coordinatord.chain.rpc.client import Rpc, RpcCall

pytestmark = pytest.mark.anyio

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
