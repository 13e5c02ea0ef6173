"""Solvency: an owner's open jobs and posts under way stay within its balance.

One balance backs one set of jobs: a wallet that could post any number on it would have its posts relayed, and its
providers' claims refused. Open jobs are summed from the index, posts that it does not show yet from the outbox, and
`submit_relays` adds up under the outbox's lock, so that of two posts at once one finds the other.
"""

from typing import Final

import attrs

from common.scalars import hex_of
from coordinatord.base.outcomes import WouldRefuse
from coordinatord.chain.contracts.payment_token import PaymentToken, read_balance
from coordinatord.chain.relayer.budgets_sql import Standing
from coordinatord.chain.relayer.outbox_sql import Promise
from coordinatord.chain.rpc.views import read_many


@attrs.frozen(slots=True)
class Promises:
    token: PaymentToken

    async def promise(self, standing: Standing, owner: bytes, amount: int, balance: int | None) -> Promise | None:
        """Limit for a post of `amount`; None when `balance`, the owner's latest, does not cover it."""
        if balance is None:  # the token does not tell: the chain's own check decides
            return Promise(amount)
        promised = standing.open_amounts + standing.unindexed
        if promised + amount > balance:
            balance = await self.balance_as_indexed(owner, standing, balance)
        if promised + amount > balance:
            return None
        return Promise(amount, balance - standing.open_amounts, standing.position)

    async def balance_as_indexed(self, owner: bytes, standing: Standing, latest: int) -> int:
        """The balance at the block that the open jobs were summed at, if that is more than the latest: a claim that the
        index does not show yet has taken its payment already."""
        if standing.position < 0:
            return latest
        view = self.token.balance_view(owner, hex(standing.position))
        (answer,) = await read_many(self.token.rpc, [view], "rpc_internal")
        return max(latest, read_balance(answer) or 0)


INSUFFICIENT_BALANCE: Final = "InsufficientBalance"


def insufficient(owner: bytes, amount: int, balance: int | None) -> WouldRefuse:
    """Refusal of a job that its owner cannot pay for, with what the owner holds and the address to fund."""
    address = hex_of(owner)
    if balance is None:
        held, missing = "too little of the payment token", "more"
    elif balance < amount:
        held, missing = f"{balance} base units of the payment token", f"at least {amount - balance}"
    else:
        held = f"{balance} base units of the payment token, promised to its open jobs"
        missing = "more, or cancel some of them"
    return WouldRefuse(
        INSUFFICIENT_BALANCE, f"the job may cost {amount} and {address} holds {held}: send {missing} to {address}"
    )
