"""Spans of relays that share a transaction, and of blocks that the indexer wrote."""

from collections.abc import AsyncIterator
from typing import Final

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from coordinatord.chain.contracts.contract_events import JobClaimed, JobSettled
from coordinatord.chain.indexer.evidence import BlockRange
from coordinatord.chain.indexer.traces import record_index_span
from coordinatord.chain.relayer import outbox_sql, queue_sql, results_sql, transactions_sql
from coordinatord.chain.relayer.in_flight import PendingTx, SignedVersion
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, QueuedRelay, RelayKind
from coordinatord.chain.relayer.resolution import record_spans
from coordinatord.chain.relayer.transactions_sql import MinedTx
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.storage.database import traces_sql
from coordinatord.storage.database.connections import Connection, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.role_connection import RoleConnection

pytestmark = pytest.mark.anyio

TARGET: Final = b"\x01" * 20
JOBS: Final = [bytes([number]) * 32 for number in (1, 2, 3)]


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    async with open_database(database_url, max_size=2) as database, database.connection() as opened:
        await migrate(opened)
        yield opened


def context(number: int) -> str:
    return f"00-{number:032x}-{number:016x}-01"


async def mined(connection: Connection, kind: RelayKind) -> MinedTx:
    """Mine a transaction with three relays, the first and third of which are traced."""
    relays = [NewRelay(kind, job, job, TARGET, b"", Priority.OP) for job in JOBS]
    queued = await outbox_sql.submit_all(connection, relays, max_depth=10)
    ids = [each.id for each in queued if isinstance(each, QueuedRelay)]
    version = SignedVersion(bytes(32), b"raw", 10, 1, is_self_transfer=False)
    tx = PendingTx(0, 0, TARGET, 100_000, [version])
    await transactions_sql.insert_transactions(connection, 1, b"\xaa" * 20, [tx])
    await queue_sql.mark_signed(connection, [(one, tx.id, place) for place, one in enumerate(ids)])
    found = MinedTx(tx.id, b"\xcc" * 32, 7, bytes(32), succeeded=True)
    await transactions_sql.record_mined(connection, [found])
    await results_sql.end_carried_relays(connection, [tx.id], [])
    for number in (0, 2):
        await traces_sql.store_trace(connection, ids[number], kind.value, JOBS[number], context(number + 1))
    return found


def trace_of(span: ReadableSpan) -> int:
    return span.context.trace_id


async def test_transaction_of_several_orders_has_one_span_with_links(
    connection: Connection, made_spans: InMemorySpanExporter
) -> None:
    await record_spans(RoleConnection(connection), [await mined(connection, RelayKind.POST)])  # type: ignore[arg-type]
    first, third, block = made_spans.get_finished_spans()
    assert [(span.name, trace_of(span)) for span in (first, third, block)] == [("relay", 1), ("relay", 3), ("block", 1)]
    assert first.parent is not None
    assert first.parent.span_id == 1
    assert block.parent is not None
    assert block.parent.span_id == first.context.span_id
    assert [link.context.span_id for link in block.links] == [third.context.span_id]
    assert dict(block.attributes or {}) == {"block": 7, "tx": "0x" + "cc" * 32}


async def test_block_of_several_orders_has_one_span_with_links(
    connection: Connection, made_spans: InMemorySpanExporter
) -> None:
    await mined(connection, RelayKind.CLAIM)
    header = BlockHeader("0x7", "0x" + "11" * 32, "0x" + "22" * 32, "0x1", "0x0")
    events = [(7, number, JobClaimed(job, 1, 1)) for number, job in enumerate(JOBS)]
    settled = (7, 3, JobSettled(JOBS[0], 1, 1, 1, 0, 0, "cid"))  # its settle is not traced
    await record_index_span(connection, [BlockRange([header], [*events, settled])], 1.0, 2.0)
    (span,) = made_spans.get_finished_spans()
    assert (span.name, trace_of(span)) == ("index", 1)
    assert [link.context.trace_id for link in span.links] == [3]
    assert await traces_sql.read_contexts_of_orders(connection, JOBS) == {}
