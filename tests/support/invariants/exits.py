"""I11: settles, fails and reclaims are relayed, independent of other users' actions.

violations = await exit_violations(connection)
assert violations == []
"""

from collections.abc import Sequence
from typing import Final

import asyncpg

# A chain error may end an exit, because its sender retries. A budget, a reserve or a full queue must never end one. An
# empty account cannot pay for exits.
_REFUSED: Final = (
    "select 'I11: ' || kind || ' ' || id || ' was dropped: ' || reason from relays"
    " where kind in ('settle', 'fail', 'reclaim') and state = 'dropped'"
    " and reason in ('relayer_funds', 'fees_above_ceiling', 'relay_queue_full', 'busy')"
    " and not (reason = 'relayer_funds' and exists (select from unnest($1::float8[], $2::float8[]) as e(since, until)"
    " where extract(epoch from ended_at) between e.since and e.until))"
)
_AFTER_OTHERS: Final = (
    "select 'I11: ' || r.kind || ' ' || r.id || ' waits, and ' || o.kind || ' ' || o.id || ' went first'"
    " from relays r join relays o on o.queued_at > r.queued_at + interval '60 seconds' and o.state = 'mined'"
    " and o.priority > r.priority where r.kind in ('settle', 'fail', 'reclaim') and r.state = 'queued'"
)


async def exit_violations(
    connection: "asyncpg.Connection[asyncpg.Record]", *, emptied: Sequence[tuple[float, float]] = ()
) -> list[str]:
    """`emptied`: Unix time since when a relayer's account had less than the cost of one exit."""
    refused = await connection.fetch(_REFUSED, [since for since, _ in emptied], [until for _, until in emptied])
    return [row[0] for row in (*refused, *await connection.fetch(_AFTER_OTHERS))]
