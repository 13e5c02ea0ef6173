"""Budgets and balances of the owners of lines."""

from collections.abc import Mapping, Sequence

import attrs

from coordinatord.api.batches.line_checks import CheckedLine, PaidLine
from coordinatord.api.batches.lines_sql import LineRecord
from coordinatord.api.batches.posts_sql import Allowance
from coordinatord.base import metrics
from coordinatord.chain.contracts.payment_token import read_balance
from coordinatord.chain.relayer import budgets_sql
from coordinatord.chain.relayer.budgets import GasPolicy, gas_estimate
from coordinatord.chain.relayer.budgets_sql import Budget, Spender, Spending, Standing
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.relayer.solvency import Promises, insufficient
from coordinatord.chain.rpc.views import read_many
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.locks import kept_open


@attrs.frozen(slots=True)
class Allowed:
    """Lines that may be posted or recorded now, in their order. Lines behind them have to wait."""

    lines: list[CheckedLine]
    allowances: dict[bytes, Allowance]


@attrs.frozen(slots=True)
class LineAllowances:
    """Room that owners' gas budgets and balances have for lines, by the limits of single submissions.

    A line over its owner's gas budget waits, with all lines behind it, until there is room or the batch's window ends.
    The budget grows as the lines before it settle. A line beyond its owner's balance fails, as it would alone. A post
    that was dropped before it was signed needs room in both again, and waits for it."""

    promises: Promises
    policy: GasPolicy

    async def room(self, connection: Connection, owner: bytes, most: int) -> int:
        """Return the number of posts, up to `most`, that this owner's gas budget has room for."""
        standing = await self._standings(connection, [owner])
        return await budgets_sql.room(connection, self._spending(owner, standing[owner]), most)

    async def allow(
        self, connection: Connection, checked: Sequence[CheckedLine], balances: Mapping[bytes, int]
    ) -> Allowed:
        """Return the lines that may go now. `balances`: the latest of each owner whose balance the token returned."""
        owners = sorted({one.owner for one in checked if isinstance(one, PaidLine)})
        standings = await self._standings(connection, owners)
        solvent, headrooms = await self._solvent(checked, standings, balances)
        allowances: dict[bytes, Allowance] = {}
        rooms: dict[bytes, int] = {}
        for owner in owners:
            spending = self._spending(owner, standings[owner])
            allowances[owner] = Allowance(spending, headrooms.get(owner), standings[owner].position)
            rooms[owner] = await budgets_sql.room(connection, spending, len(solvent))
        for place, one in enumerate(solvent):
            if isinstance(one, PaidLine):
                owner = one.owner
                if rooms[owner] <= 0:
                    return Allowed(solvent[:place], allowances)
                rooms[owner] -= 1
        return Allowed(solvent, allowances)

    async def again(self, connection: Connection, owners: Sequence[bytes]) -> dict[bytes, Allowance]:
        """Return the limits of owners whose posts were dropped before they were signed, and are to be queued again."""
        standings = await self._standings(connection, owners)
        async with kept_open(connection):
            views = [self.promises.token.balance_view(owner) for owner in owners]
            answers = await read_many(self.promises.token.rpc, views, "rpc_internal")
        read = zip(owners, map(read_balance, answers), strict=True)
        balances = {owner: balance for owner, balance in read if balance is not None}
        return {
            owner: Allowance(
                self._spending(owner, standing),
                balances[owner] - standing.open_amounts if owner in balances else None,
                standing.position,
            )
            for owner, standing in standings.items()
        }

    async def _solvent(
        self, checked: Sequence[CheckedLine], standings: Mapping[bytes, Standing], balances: Mapping[bytes, int]
    ) -> tuple[list[CheckedLine], dict[bytes, int]]:
        """Replace lines that no balance covers by records. Return the lines, and what each balance leaves."""
        headrooms = {
            owner: balances[owner] - standing.open_amounts for owner, standing in standings.items() if owner in balances
        }
        promised = {owner: standing.unindexed for owner, standing in standings.items()}
        looked_again: set[bytes] = set()
        kept: list[CheckedLine] = []
        for one in checked:
            if not isinstance(one, PaidLine) or one.owner not in headrooms:
                kept.append(one)
                continue
            owner = one.owner
            total = promised[owner] + one.paid.amount
            if total > headrooms[owner] and owner not in looked_again:
                looked_again.add(owner)
                balance = await self.promises.balance_as_indexed(owner, standings[owner], balances[owner])
                headrooms[owner] = balance - standings[owner].open_amounts
            if total > headrooms[owner]:
                metrics.budget_refusals.labels("balance").inc()
                refusal = insufficient(owner, one.paid.amount, balances[owner])
                kept.append(LineRecord(one.line, one.paid.body.job_id, None, refusal.name, refusal.message))
            else:
                promised[owner] = total
                kept.append(one)
        return kept, headrooms

    async def _standings(self, connection: Connection, owners: Sequence[bytes]) -> dict[bytes, Standing]:
        if not owners:
            return {}
        found = await budgets_sql.read_standings(connection, [Spender(owner, Budget.POSTS) for owner in owners])
        return {spender.signer: standing for spender, standing in found.items()}

    def _spending(self, owner: bytes, standing: Standing) -> Spending:
        return Spending(owner, gas_estimate(RelayKind.POST), self.policy.limits(Budget.POSTS, standing))
