"""States of relays, for callers that wait."""

from collections.abc import Sequence

import attrs

from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.storage.database.connections import Connection


@attrs.frozen(slots=True)
class RelayStatus:
    """State of a relay. `tx_hash`: the mined version, else the latest that carries it; None before signing.
    `refusal`: the code by which nodes refused every sending of that transaction; None when a node may have it."""

    id: int
    dedupe: bytes
    kind: RelayKind = attrs.field(converter=RelayKind)
    state: str
    reason: str | None
    raw: bytes | None
    tx_hash: bytes | None
    block_number: int | None
    refusal: str | None = None

    @property
    def live(self) -> bool:
        return self.state in ("queued", "signed")


async def statuses(connection: Connection, relay_ids: Sequence[int]) -> list[RelayStatus]:
    rows = await connection.fetch(
        "select r.id, r.dedupe, r.kind, r.state::text, r.reason, r.raw,"
        " coalesce(t.mined_hash, (select v.hash from relay_tx_versions v where v.tx_id = t.id"
        " and not v.fills order by v.created_at desc limit 1)), t.block_number, t.refusal"
        " from relays r left join relay_txs t on t.id = r.tx_id where r.id = any($1::bigint[])",
        relay_ids,
    )
    return [RelayStatus(*row) for row in rows]
