"""I11: settles, fails and reclaims are relayed whatever strangers do.

violations = await exit_violations(connection)
assert violations == []
"""

from typing import Final

import asyncpg

# Trouble of the chain may end an exit (its sender asks again); a budget, a reserve, or a full queue never does.
_REFUSED: Final = (
    "select 'I11: ' || kind || ' ' || id || ' was dropped: ' || reason from relays"
    " where kind in ('settle', 'fail', 'reclaim') and state = 'dropped'"
    " and reason in ('relayer_funds', 'fees_above_ceiling', 'relay_queue_full', 'busy')"
)
_AFTER_OTHERS: Final = (
    "select 'I11: ' || r.kind || ' ' || r.id || ' waits, and ' || o.kind || ' ' || o.id || ' went first'"
    " from relays r join relays o on o.queued_at > r.queued_at + interval '60 seconds' and o.state = 'mined'"
    " and o.priority > r.priority where r.kind in ('settle', 'fail', 'reclaim') and r.state = 'queued'"
)


async def exit_violations(connection: "asyncpg.Connection[asyncpg.Record]") -> list[str]:
    return [row[0] for query in (_REFUSED, _AFTER_OTHERS) for row in await connection.fetch(query)]
