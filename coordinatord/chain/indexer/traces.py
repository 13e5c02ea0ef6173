"""Record trace spans for indexed blocks."""

from collections.abc import Mapping, Sequence
from typing import Final

from common.tracing import spans
from coordinatord.chain.contracts.contract_events import (
    JobCancelled,
    JobClaimed,
    JobFailed,
    JobPosted,
    JobReclaimed,
    JobSettled,
)
from coordinatord.chain.indexer.evidence import BlockRange
from coordinatord.storage.database import traces_sql
from coordinatord.storage.database.connections import Connection

_JobEvent = JobPosted | JobClaimed | JobSettled | JobFailed | JobCancelled | JobReclaimed
_OP_NAMES: Final[Mapping[type, str]] = {
    JobPosted: "post",
    JobClaimed: "claim",
    JobSettled: "settle",
    JobFailed: "fail",
    JobCancelled: "cancel",
    JobReclaimed: "reclaim",
}


async def record_index_span(connection: Connection, blocks: Sequence[BlockRange], started: float, ended: float) -> None:
    """Record a span `index` for blocks with traced operations.

    The span is a child of the first operation's request, with links to the other requests.
    """
    if not spans.is_on():
        return
    events = [event for block in blocks for _, _, event in block.events]
    ops = [(_OP_NAMES[type(event)], event.job_id) for event in events if isinstance(event, _JobEvent)]
    contexts = await traces_sql.read_contexts_of_ops(connection, ops, spans.MAX_LINKS) if ops else []
    if contexts:
        spans.record_span(
            "index",
            parent=contexts[0],
            links=contexts[1:],
            started=started,
            ended=ended,
            first_block=blocks[0].first.height,
            last_block=blocks[-1].last.height,
        )
