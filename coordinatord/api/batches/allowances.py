"""Budgets and balances of the owners of lines."""

from collections.abc import Mapping, Sequence

import attrs

from coordinatord.api.batches.line_checks import CheckedLine, PaidLine
from coordinatord.api.batches.lines_sql import LineRecord
from coordinatord.api.batches.posts_sql import Allowance
from coordinatord.base import metrics
from coordinatord.chain.contracts.payment_token import read_balance
from coordinatord.chain.relayer import budgets_sql
from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.chain.relayer.budgets_sql import Budget, Spender, Spending, Standing
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.relayer.solvency import Promises, insufficient
from coordinatord.chain.rpc.views import read_many
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.locks import kept_open


@attrs.frozen(slots=True)
class LineAllowances:
    """Room for lines in their owners' gas budgets and balances, by the limits of single submissions.

    A line over its owner's gas budget waits, with all later lines, until there is room or the batch's window ends. The
    budget grows as earlier lines settle. A line beyond its owner's balance fails, like a single submission. A post that
    was dropped before signing needs room in both again, and waits for it."""

    promises: Promises
    policy: GasPolicy

    async def room(self, connection: Connection, owner: bytes, limit: int) -> int:
        """Return the number of posts, up to `limit`, that this owner's gas budget has room for."""
        standings = await _standings(connection, [owner])
        return await budgets_sql.room(connection, self._allowance(owner, standings[owner], None).spending, limit)

    async def allow(
        self, connection: Connection, checked: Sequence[CheckedLine], balances: Mapping[bytes, int]
    ) -> tuple[list[CheckedLine], dict[bytes, Allowance]]:
        """Return the lines that may be posted or recorded now, in order, and the limits of their owners. Later lines
        have to wait. `balances` has the latest known balance of each owner."""
        standings = await _standings(connection, sorted({one.owner for one in checked if isinstance(one, PaidLine)}))
        lines, raised = await self._solvent(checked, standings, balances)
        allowances = {owner: self._allowance(owner, each, raised.get(owner)) for owner, each in standings.items()}
        rooms = {
            owner: await budgets_sql.room(connection, each.spending, len(lines)) for owner, each in allowances.items()
        }
        for place, one in enumerate(lines):
            if isinstance(one, PaidLine):
                if rooms[one.owner] <= 0:
                    return lines[:place], allowances
                rooms[one.owner] -= 1
        return lines, allowances

    async def again(self, connection: Connection, owners: Sequence[bytes]) -> dict[bytes, Allowance]:
        """Return the limits of owners with posts that were dropped before signing and will be queued again."""
        standings = await _standings(connection, owners)
        async with kept_open(connection):
            views = [self.promises.token.balance_view(owner) for owner in owners]
            answers = await read_many(self.promises.token.rpc, views, "rpc_internal")
        balances = dict(zip(owners, map(read_balance, answers), strict=True))
        return {owner: self._allowance(owner, each, balances[owner]) for owner, each in standings.items()}

    def _allowance(self, owner: bytes, standing: Standing, balance: int | None) -> Allowance:
        spending = Spending(owner, gas_estimate(RelayKind.POST), self.policy.limits(Budget.POSTS, standing))
        headroom = balance - standing.open_amounts if balance is not None else None
        return Allowance(spending, headroom, standing.position)

    async def _solvent(
        self, checked: Sequence[CheckedLine], standings: Mapping[bytes, Standing], balances: Mapping[bytes, int]
    ) -> tuple[list[CheckedLine], dict[bytes, int]]:
        """Replace lines beyond their owner's balance by records. Return the lines and the balances. Add payments of
        claims that are not indexed yet to the balances."""
        raised = dict(balances)
        promised = {owner: standing.open_amounts + standing.unindexed for owner, standing in standings.items()}
        looked_again: set[bytes] = set()
        kept: list[CheckedLine] = []
        for one in checked:
            if not isinstance(one, PaidLine) or one.owner not in raised:
                kept.append(one)
                continue
            owner, total = one.owner, promised[one.owner] + one.paid.amount
            if total > raised[owner] and owner not in looked_again:
                looked_again.add(owner)
                raised[owner] = await self.promises.balance_as_indexed(owner, standings[owner], balances[owner])
            if total > raised[owner]:
                metrics.budget_refusals.labels("balance").inc()
                refusal = insufficient(owner, one.paid.amount, balances[owner])
                kept.append(LineRecord(one.line, one.paid.body.job_id, None, refusal.name, refusal.message))
            else:
                promised[owner] = total
                kept.append(one)
        return kept, raised


async def _standings(connection: Connection, owners: Sequence[bytes]) -> dict[bytes, Standing]:
    if not owners:
        return {}
    found = await budgets_sql.read_standings(connection, [Spender(owner, Budget.POSTS) for owner in owners])
    return {spender.signer: standing for spender, standing in found.items()}
