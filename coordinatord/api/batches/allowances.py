"""Checks of batch lines against their owners' gas budgets and balances."""

from collections.abc import Mapping, Sequence

import attrs

from coordinatord.api.batches.line_checks import CheckedLine, PaidLine
from coordinatord.api.batches.lines_sql import LineRecord
from coordinatord.api.batches.posts_sql import Allowance
from coordinatord.base import metrics
from coordinatord.chain.contracts.payment_token import decode_balance
from coordinatord.chain.relayer import budgets_sql
from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.chain.relayer.budgets_sql import Budget, Spender, Spending, Standing
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.relayer.solvency import SolvencyChecks, insufficient_balance
from coordinatord.chain.rpc.views import read_many
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.locks import keep_transaction_open


@attrs.frozen(slots=True)
class LineAllowances:
    """Checks batch lines against the gas budgets and balances that also limit single submissions.

    A line over its owner's gas budget waits, with all later lines, until there is room or the batch's window ends. The
    budget grows as earlier lines settle. A line beyond its owner's balance fails, like a single submission. A post that
    was dropped before signing waits until the budget and the balance have room again."""

    solvency: SolvencyChecks
    policy: GasPolicy

    async def count_posts_within_budget(self, connection: Connection, owner: bytes, limit: int) -> int:
        """Return the number of posts, up to `limit`, that this owner's gas budget has room for."""
        standings = await _read_standings(connection, [owner])
        return await budgets_sql.count_fitting_ops(
            connection, self._build_allowance(owner, standings[owner], None).spending, limit
        )

    async def select_allowed_lines(
        self, connection: Connection, checked: Sequence[CheckedLine], balances: Mapping[bytes, int]
    ) -> tuple[list[CheckedLine], dict[bytes, Allowance]]:
        """Return the lines at the start of `checked` that may be posted or recorded now, and the limits of their
        owners. All later lines have to wait. `balances` has the latest known balance of each owner."""
        standings = await _read_standings(
            connection, sorted({one.owner for one in checked if isinstance(one, PaidLine)})
        )
        lines, checked_balances = await self._reject_unfunded(checked, standings, balances)
        allowances = {
            owner: self._build_allowance(owner, each, checked_balances.get(owner)) for owner, each in standings.items()
        }
        rooms = {
            owner: await budgets_sql.count_fitting_ops(connection, each.spending, len(lines))
            for owner, each in allowances.items()
        }
        for index, line in enumerate(lines):
            if isinstance(line, PaidLine):
                if rooms[line.owner] <= 0:
                    return lines[:index], allowances
                rooms[line.owner] -= 1
        return lines, allowances

    async def read_requeue_allowances(self, connection: Connection, owners: Sequence[bytes]) -> dict[bytes, Allowance]:
        """Return the limits of owners with posts that were dropped before signing and will be queued again."""
        standings = await _read_standings(connection, owners)
        async with keep_transaction_open(connection):
            views = [self.solvency.token.balance_view(owner) for owner in owners]
            answers = await read_many(self.solvency.token.rpc, views, "rpc_internal")
        balances = dict(zip(owners, map(decode_balance, answers), strict=True))
        return {owner: self._build_allowance(owner, each, balances[owner]) for owner, each in standings.items()}

    def _build_allowance(self, owner: bytes, standing: Standing, balance: int | None) -> Allowance:
        spending = Spending(owner, gas_estimate(RelayKind.POST), self.policy.limits_for(Budget.POSTS, standing))
        headroom = balance - standing.open_amounts if balance is not None else None
        return Allowance(spending, headroom, standing.block_number)

    async def _reject_unfunded(
        self, checked: Sequence[CheckedLine], standings: Mapping[bytes, Standing], balances: Mapping[bytes, int]
    ) -> tuple[list[CheckedLine], dict[bytes, int]]:
        """Replace each line beyond its owner's balance with a record of the failure. Return the lines, and the balances
        that the lines were checked against. If an owner's latest balance is too low, the balance at the indexed block
        counts instead, because the latest balance already lacks the payments of claims that are not indexed yet."""
        checked_balances = dict(balances)
        promised = {owner: standing.open_amounts + standing.unindexed_amounts for owner, standing in standings.items()}
        read_again: set[bytes] = set()
        results: list[CheckedLine] = []
        for one in checked:
            if not isinstance(one, PaidLine) or one.owner not in checked_balances:
                results.append(one)
                continue
            owner, total = one.owner, promised[one.owner] + one.paid_order.amount
            if total > checked_balances[owner] and owner not in read_again:
                read_again.add(owner)
                checked_balances[owner] = await self.solvency.read_balance_as_indexed(
                    owner, standings[owner], balances[owner]
                )
            if total > checked_balances[owner]:
                metrics.budget_refusals.labels("balance").inc()
                refusal = insufficient_balance(owner, one.paid_order.amount, balances[owner])
                results.append(LineRecord(one.line, one.paid_order.order.job_id, None, refusal.name, refusal.message))
            else:
                promised[owner] = total
                results.append(one)
        return results, checked_balances


async def _read_standings(connection: Connection, owners: Sequence[bytes]) -> dict[bytes, Standing]:
    if not owners:
        return {}
    found = await budgets_sql.read_standings(connection, [Spender(owner, Budget.POSTS) for owner in owners])
    return {spender.signer: standing for spender, standing in found.items()}
