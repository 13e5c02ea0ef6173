"""Solvency: what an owner's open jobs and posts under way will collect stays within its balance.

One balance backs one set of jobs: a wallet that could post any number on it would have its posts relayed, and its
providers' claims refused. Open jobs are summed from the index, posts that it does not show yet from the outbox, and
`submit_relays` adds up under the outbox's lock, so that of two posts at once one finds the other.
"""

import attrs

from coordinatord import metrics
from coordinatord.chain.payment_token import PaymentToken, read_balance
from coordinatord.chain.views import read_many
from coordinatord.service.outcomes import WouldRefuse
from coordinatord.store.gas_budgets import Standing
from coordinatord.store.outbox import Promise


@attrs.frozen(slots=True)
class Promises:
    token: PaymentToken

    async def promise(self, standing: Standing, owner: bytes, amount: int, balance: int | None) -> Promise | None:
        """What a post of `amount` is held against; None when `balance`, the owner's latest, does not cover it."""
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


def insufficient() -> WouldRefuse:
    metrics.budget_refusals.labels("balance").inc()
    return WouldRefuse(
        "InsufficientBalance",
        "the owner's balance does not cover this job beside its open jobs; cancel some, or add to the balance",
    )
