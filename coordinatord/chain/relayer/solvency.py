"""Solvency check: the amounts of an owner's open jobs and posts under way must not exceed the owner's balance.

Otherwise a wallet could have many posts relayed whose claims would all fail. The sum consists of open jobs in the
index, and of posts in the outbox that are not indexed yet. `submit_relays` computes it under the outbox's lock, so that
concurrent posts see each other.
"""

from typing import Final

import attrs

from common.scalars import hex_of
from coordinatord.base.outcomes import PredictedRefusal
from coordinatord.chain.contracts.payment_token import PaymentToken, decode_balance
from coordinatord.chain.relayer.budgets_sql import Standing
from coordinatord.chain.relayer.outbox_sql import PaymentPromise
from coordinatord.chain.rpc.views import read_many


@attrs.frozen(slots=True)
class SolvencyChecks:
    """Checks whether owners can pay for their posts."""

    token: PaymentToken

    async def promise_payment(
        self, standing: Standing, owner: bytes, amount: int, balance: int | None
    ) -> PaymentPromise | None:
        """Return the promise to pay `amount` for a post, or None if the owner's balance does not cover it. `balance` is
        the owner's latest balance, or None if the token did not answer."""
        # Without a known balance, leave the check to the contracts.
        if balance is None:
            return PaymentPromise(amount)
        promised = standing.open_amounts + standing.unindexed_amounts
        if promised + amount > balance:
            balance = await self.read_balance_as_indexed(owner, standing, balance)
        if promised + amount > balance:
            return None
        return PaymentPromise(amount, balance - standing.open_amounts, standing.block_number)

    async def read_balance_as_indexed(self, owner: bytes, standing: Standing, latest: int) -> int:
        """Return the balance at the block `standing.block_number`, or the latest balance if that is higher. The latest
        balance alone may be too low: a claim that the index does not show yet has already collected its payment."""
        if standing.block_number < 0:
            return latest
        view = self.token.balance_view(owner, hex(standing.block_number))
        (answer,) = await read_many(self.token.rpc, [view], "rpc_internal")
        return max(latest, decode_balance(answer) or 0)


INSUFFICIENT_BALANCE: Final = "InsufficientBalance"


def insufficient_balance(owner: bytes, amount: int, balance: int | None) -> PredictedRefusal:
    """Return the refusal of a job that its owner cannot pay for, with the balance and the address to fund."""
    address = hex_of(owner)
    if balance is None:
        balance_text, remedy = "too little of the payment token", f"send more to {address}"
    elif balance < amount:
        balance_text = f"{balance} base units of the payment token"
        remedy = f"send at least {amount - balance} to {address}"
    else:
        balance_text = f"{balance} base units of the payment token, promised to its open jobs"
        remedy = f"send more to {address}, or cancel some of its open jobs"
    return PredictedRefusal(
        INSUFFICIENT_BALANCE, f"the job may cost {amount} and {address} holds {balance_text}: {remedy}"
    )
