"""Allowances of a batch's lines: what their owners' gas budgets and balances have room for.

A line over its owner's gas budget waits, with all lines behind it, until there is room or the batch's window ends: the
budget grows as the lines before it settle. A line beyond its owner's balance fails, as it would alone.
"""

from collections.abc import Mapping, Sequence

import attrs

from coordinatord.service.gas_budgets import GasPolicy, gas_estimate
from coordinatord.service.line_checks import Checked, Good, Skipped
from coordinatord.service.promises import Promises, insufficient
from coordinatord.store import gas_budgets
from coordinatord.store.batch_relays import Allowance
from coordinatord.store.database import Connection
from coordinatord.store.gas_budgets import Budget, Spender, Spending, Standing
from coordinatord.store.outbox import RelayKind


@attrs.frozen(slots=True)
class Allowed:
    """`lines`: those that may go now, in their order. `whole` is False where lines behind them have to wait."""

    lines: list[Checked]
    allowances: dict[bytes, Allowance]
    whole: bool


@attrs.frozen(slots=True)
class LineAllowances:
    promises: Promises
    policy: GasPolicy

    async def room(self, connection: Connection, owner: bytes, most: int) -> int:
        """How many posts of this owner its gas budget has room for."""
        standing = await self._standings(connection, [owner])
        return await gas_budgets.room(connection, self._spending(owner, standing[owner]), most)

    async def allow(self, connection: Connection, checked: Sequence[Checked], balances: Mapping[bytes, int]) -> Allowed:
        """`balances`: the latest of each owner whose balance the token tells."""
        owners = sorted({one.paid.body.owner for one in checked if isinstance(one, Good)})
        standings = await self._standings(connection, owners)
        solvent, headrooms = await self._solvent(checked, standings, balances)
        allowances: dict[bytes, Allowance] = {}
        rooms: dict[bytes, int] = {}
        for owner in owners:
            spending = self._spending(owner, standings[owner])
            allowances[owner] = Allowance(spending, headrooms.get(owner), standings[owner].position)
            rooms[owner] = await gas_budgets.room(connection, spending, len(solvent))
        for place, one in enumerate(solvent):
            if isinstance(one, Good):
                owner = one.paid.body.owner
                if rooms[owner] <= 0:
                    return Allowed(solvent[:place], allowances, whole=False)
                rooms[owner] -= 1
        return Allowed(solvent, allowances, whole=True)

    async def _solvent(
        self, checked: Sequence[Checked], standings: Mapping[bytes, Standing], balances: Mapping[bytes, int]
    ) -> tuple[list[Checked], dict[bytes, int]]:
        """The lines, those that no balance covers skipped; and of each owner what its balance leaves for posts."""
        headrooms = {
            owner: balances[owner] - standing.open_amounts for owner, standing in standings.items() if owner in balances
        }
        promised = {owner: standing.unindexed for owner, standing in standings.items()}
        looked_again: set[bytes] = set()
        kept: list[Checked] = []
        for one in checked:
            if not isinstance(one, Good) or one.paid.body.owner not in headrooms:
                kept.append(one)
                continue
            owner = one.paid.body.owner
            total = promised[owner] + one.paid.amount
            if total > headrooms[owner] and owner not in looked_again:
                looked_again.add(owner)
                balance = await self.promises.balance_as_indexed(owner, standings[owner], balances[owner])
                headrooms[owner] = balance - standings[owner].open_amounts
            if total > headrooms[owner]:
                refusal = insufficient()
                kept.append(Skipped(one.line, one.paid.body.job_id, refusal.name, refusal.message))
            else:
                promised[owner] = total
                kept.append(one)
        return kept, headrooms

    async def _standings(self, connection: Connection, owners: Sequence[bytes]) -> dict[bytes, Standing]:
        if not owners:
            return {}
        found = await gas_budgets.read_standings(connection, [Spender(owner, Budget.POSTS) for owner in owners])
        return {spender.signer: standing for spender, standing in found.items()}

    def _spending(self, owner: bytes, standing: Standing) -> Spending:
        return Spending(owner, gas_estimate(RelayKind.POST), self.policy.limits(Budget.POSTS, standing))
