"""Outcomes of signed relays and their spans, in the tables alone."""

from typing import Final

import attrs
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from coordinatord.chain.contracts.contract_events import JobClaimed, JobSettled
from coordinatord.chain.indexer.evidence import BlockRange
from coordinatord.chain.indexer.traces import record_index_span
from coordinatord.chain.relayer import (
    endings_sql,
    outbox_sql,
    queue_sql,
    results_sql,
    transactions_sql,
)
from coordinatord.chain.relayer.in_flight import SignedVersion
from coordinatord.chain.relayer.outbox_sql import MAX_REQUEUES, NewRelay, NotQueued, Priority, QueuedRelay, RelayKind
from coordinatord.chain.relayer.resolution import record_spans
from coordinatord.chain.relayer.results_sql import RefusedCall
from coordinatord.chain.relayer.transactions_sql import MinedTx
from coordinatord.chain.rpc.chain_data import BlockHeader
from coordinatord.storage.database import traces_sql
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.role_connection import RoleConnection
from tests.integration.coordinatord.relayer.running import insert_signed, submit

CHAIN, ACCOUNT, TARGET = 1, b"\xaa" * 20, b"\x01" * 20
BLOCK = b"\xbb" * 32


def new(name: bytes, *, subject: bytes = b"") -> NewRelay:
    return NewRelay(RelayKind.POST, subject or name, name, TARGET, b"call " + name, Priority.POST)


async def queued(connection: Connection, name: bytes) -> int:
    submitted = await submit(connection, new(name), max_depth=100)
    assert isinstance(submitted, QueuedRelay)
    assert not submitted.is_duplicate
    return submitted.id


async def signed(connection: Connection, nonce: int, *names: bytes) -> int:
    """Insert a transaction that carries a relay of each name. Return its id."""
    relays = [await queued(connection, name) for name in names]
    return (await insert_signed(connection, ACCOUNT, nonce, relays)).id


async def mine(connection: Connection, tx_id: int, *refused: RefusedCall) -> None:
    await transactions_sql.record_mined(connection, [MinedTx(tx_id, bytes(32), 7, BLOCK, succeeded=True)])
    await results_sql.end_carried_relays(connection, [tx_id], refused)


async def states(connection: Connection) -> list[str]:
    return [row[0] for row in await connection.fetch("select state::text from relays order by id")]


async def test_one_submission_of_many_counts_its_own_rows(connection: Connection) -> None:
    relays = [new(b"a"), new(b"a"), new(b"b", subject=b"s"), new(b"c"), new(b"d")]
    outcomes = await outbox_sql.submit_all(connection, relays, max_depth=3)
    assert [getattr(outcome, "is_duplicate", outcome) for outcome in outcomes] == [
        False,
        True,
        False,
        False,
        NotQueued.QUEUE_FULL,
    ]


async def test_a_queue_that_others_have_filled_has_room_for_exits(connection: Connection) -> None:
    exit_op = attrs.evolve(new(b"exit"), kind=RelayKind.RECLAIM, priority=Priority.EXIT)
    outcomes = await outbox_sql.submit_all(connection, [new(b"a"), new(b"b"), exit_op], max_depth=1)
    assert [type(outcome) for outcome in outcomes] == [QueuedRelay, NotQueued, QueuedRelay]


async def test_a_refused_call_ends_refused_and_its_neighbours_mined(connection: Connection) -> None:
    tx_id = await signed(connection, 0, b"a", b"b", b"c")
    await mine(connection, tx_id, RefusedCall(tx_id, 1, "StaleOp", b"\x01"))
    assert await states(connection) == ["mined", "refused", "mined"]


async def test_an_unmade_block_brings_mined_and_refused_relays_back(connection: Connection) -> None:
    tx_id = await signed(connection, 0, b"a", b"b")
    await mine(connection, tx_id, RefusedCall(tx_id, 1, "StaleOp", b"\x01"))
    assert await results_sql.unmine_blocks(connection, CHAIN, ACCOUNT, [BLOCK]) == 1
    assert await states(connection) == ["signed", "signed"]
    assert [tx.id for tx in await transactions_sql.read_pending(connection, CHAIN, ACCOUNT)] == [tx_id]


async def test_undone_relay_keeps_its_end_until_mined_again(connection: Connection) -> None:
    tx_id = await signed(connection, 0, b"a")
    await mine(connection, tx_id)
    await queued(connection, b"a")
    await results_sql.unmine_blocks(connection, CHAIN, ACCOUNT, [BLOCK])
    assert await states(connection) == ["mined", "queued"]
    await mine(connection, tx_id, RefusedCall(tx_id, None, "OrderExpired", b"\x02"))
    assert await states(connection) == ["refused", "queued"]


async def test_lost_nonces_requeue_relays_and_finally_drop_them(connection: Connection) -> None:
    tx_id = await signed(connection, 0, b"a")
    await results_sql.mark_lost(connection, [tx_id])
    (again,) = await queue_sql.take_relays(connection, 10, 10)
    assert again.requeue_count == 1
    await connection.execute("update relays set state = 'signed', requeued = $1", MAX_REQUEUES)
    await results_sql.requeue_relays(connection, [again.id], "nonce_conflict")
    status = (await outbox_sql.read_statuses(connection, [again.id]))[again.id]
    assert (status.state, status.reason, status.tx_hash) == ("dropped", "nonce_conflict", None)
    assert await transactions_sql.read_pending(connection, CHAIN, ACCOUNT) == []


async def test_lost_bytes_mined_later_end_their_relays(connection: Connection) -> None:
    lost = await signed(connection, 0, b"a", b"b")
    await results_sql.mark_lost(connection, [lost])
    a, b = (relay.id for relay in await queue_sql.take_relays(connection, 10, 10))
    refused = [RefusedCall(lost, 1, "StaleOp", b"\x01")]
    await transactions_sql.record_mined(connection, [MinedTx(lost, bytes(32), 7, BLOCK, succeeded=True)])
    assert await results_sql.rebind_carried_relays(connection, [lost], refused) == {a}
    await results_sql.end_carried_relays(connection, [lost], refused)
    assert [s and s.state for s in (await outbox_sql.read_statuses(connection, [a, b])).values()] == ["mined", "queued"]


@pytest.mark.parametrize(("minutes", "blocks"), [(20, []), (1, [(7, BLOCK)])], ids=["retired", "restarting"])
async def test_vanished_block_delays_refusals_only_for_a_while(
    connection: Connection, minutes: int, blocks: list[tuple[int, bytes]]
) -> None:
    await mine(connection, await signed(connection, 0, b"a"))
    await connection.execute("update relay_txs set broadcast_at = now() - $1 * interval '1 minute'", minutes)
    assert await transactions_sql.read_newest_blocks(connection, CHAIN, 256) == blocks


async def test_gaps_are_nonces_lost_or_never_stored_and_not_mined_ones(connection: Connection) -> None:
    mined, lost = await signed(connection, 4, b"a"), await signed(connection, 5, b"b")
    await mine(connection, mined)
    await results_sql.mark_lost(connection, [lost])
    gaps = await transactions_sql.find_nonce_gaps(connection, CHAIN, ACCOUNT, [4, 5, 6])
    assert gaps == [(5, lost), (6, None)]


async def test_expired_ops_are_dropped_but_signed_ones_are_not(connection: Connection) -> None:
    await signed(connection, 0, b"a")
    await queued(connection, b"b")
    await queued(connection, b"c")
    await connection.execute("update relays set queued_at = queued_at - interval '1 minute' where dedupe <> 'c'")
    assert await queue_sql.drop_overdue_relays(connection, 30_000) == {2: RelayKind.POST}
    assert await states(connection) == ["signed", "dropped", "queued"]


async def test_what_came_back_is_not_dropped_for_its_time_in_the_queue(connection: Connection) -> None:
    """The caller may know that it was mined. Dropping it could leave a settled job open forever."""
    tx_id = await signed(connection, 0, b"a")
    await mine(connection, tx_id)
    await results_sql.unmine_blocks(connection, CHAIN, ACCOUNT, [BLOCK])
    await results_sql.mark_lost(connection, [tx_id])
    await connection.execute("update relays set queued_at = queued_at - interval '1 minute'")
    assert await queue_sql.drop_overdue_relays(connection, 1_000) == {}
    assert await states(connection) == ["queued"]


async def test_twice_lost_bytes_end_the_relay_in_any_version(connection: Connection) -> None:
    first = await signed(connection, 0, b"a")
    await results_sql.mark_lost(connection, [first])
    (relay,) = await queue_sql.take_relays(connection, 10, 10)
    again = await insert_signed(connection, ACCOUNT, 1, [relay.id])
    await results_sql.mark_lost(connection, [again.id])
    await transactions_sql.record_mined(connection, [MinedTx(first, bytes(32), 7, BLOCK, succeeded=True)])
    assert await results_sql.rebind_carried_relays(connection, [first], []) == {relay.id}
    await results_sql.end_carried_relays(connection, [first], [])
    assert await states(connection) == ["mined"]
    status = (await outbox_sql.read_statuses(connection, [relay.id]))[relay.id]
    assert status.block_number == 7


async def test_self_transfer_is_stored_and_never_reported_as_a_relay(connection: Connection) -> None:
    tx_id = await signed(connection, 0, b"a")
    fill = SignedVersion(b"\xff" * 32, b"fill", 20, 2, is_self_transfer=True)
    await transactions_sql.add_versions(connection, [(tx_id, fill)])
    (tx,) = await transactions_sql.read_pending(connection, CHAIN, ACCOUNT)
    assert [version.signed_bytes for version in tx.versions] == [b"raw", b"fill"]
    status = (await outbox_sql.read_statuses(connection, [1]))[1]
    assert status.tx_hash == bytes(32)


async def test_of_one_request_only_what_names_the_same_content_joins(connection: Connection) -> None:
    def settle(content: bytes) -> NewRelay:
        return attrs.evolve(new(b"settle"), kind=RelayKind.SETTLE, content=content)

    first = await submit(connection, settle(b"one"), max_depth=10)
    assert isinstance(first, QueuedRelay)
    assert await submit(connection, settle(b"another"), max_depth=10) == NotQueued.SUBJECT_BUSY
    again = settle(b"one")
    assert await submit(connection, again, max_depth=10) == QueuedRelay(first.id, again, is_duplicate=True)
    await queue_sql.end_queued_relays(connection, [queue_sql.RelayEnding(first.id, "refused", "SlaExpired")])
    assert isinstance(await submit(connection, settle(b"another"), max_depth=10), QueuedRelay)


async def test_two_contents_of_one_request_at_once_leave_the_first(connection: Connection) -> None:
    relays = [attrs.evolve(new(b"settle"), content=content) for content in (b"one", b"another", b"one")]
    outcomes = await outbox_sql.submit_all(connection, relays, max_depth=10)
    first, _, third = relays
    assert outcomes == [
        QueuedRelay(1, first, is_duplicate=False),
        NotQueued.SUBJECT_BUSY,
        QueuedRelay(1, third, is_duplicate=True),
    ]


async def test_held_relay_is_not_dropped_for_its_time_in_the_queue(connection: Connection) -> None:
    await submit(connection, attrs.evolve(new(b"a"), held_for_s=30.0), max_depth=10)
    await connection.execute("update relays set queued_at = queued_at - interval '1 minute'")
    assert await queue_sql.drop_overdue_relays(connection, 1_000) == {}
    await connection.execute("update relays set held_until = clock_timestamp()")
    assert await queue_sql.drop_overdue_relays(connection, 1_000) == {1: RelayKind.POST}


async def test_exit_is_not_dropped_however_long_it_waits(connection: Connection) -> None:
    exits = [attrs.evolve(new(b"exit"), kind=RelayKind.FAIL, priority=Priority.EXIT), new(b"post")]
    await outbox_sql.submit_all(connection, exits, max_depth=10)
    await connection.execute("update relays set queued_at = queued_at - interval '1 hour'")
    assert await queue_sql.drop_overdue_relays(connection, 1_000) == {2: RelayKind.POST}
    assert await states(connection) == ["queued", "dropped"]


@pytest.mark.parametrize("kind", [RelayKind.CANCEL, RelayKind.SETTLE, RelayKind.CLAIM])
async def test_what_ended_a_job_stays_known_when_its_relay_is_dropped(connection: Connection, kind: RelayKind) -> None:
    tx_id = await signed(connection, 0, b"job")
    await signed(connection, 1, b"a later transaction, which says what nonce comes next")
    await connection.execute("update relays set kind = $1 where tx_id = $2", kind.value, tx_id)
    await mine(connection, tx_id)
    ended = None if kind is RelayKind.CLAIM else bytes(32)
    assert await endings_sql.find_ending_tx(connection, b"job") == ended
    await connection.execute("update relays set ended_at = ended_at - interval '8 days' where tx_id = $1", tx_id)
    await connection.execute("update relay_txs set created_at = created_at - interval '8 days'")
    assert await endings_sql.drop_ended_relays(connection, 7 * 86_400, 10) == 1
    assert await connection.fetchval("select count(*) from relays") == 1
    assert await endings_sql.find_ending_tx(connection, b"job") == ended


async def test_second_cancel_joins_the_mined_one(connection: Connection) -> None:
    cancel = attrs.evolve(new(b"cancel", subject=b"job"), kind=RelayKind.CANCEL)
    first = await submit(connection, cancel, max_depth=10)
    assert isinstance(first, QueuedRelay)
    await connection.execute("update relays set state = 'mined', ended_at = now()")
    other = attrs.evolve(cancel, dedupe=b"other", subject=b"another job")
    outcomes = await outbox_sql.submit_all(connection, [other, cancel], max_depth=10)
    assert outcomes[1] == QueuedRelay(first.id, cancel, is_duplicate=True)
    assert await connection.fetchval("select array_agg(dedupe order by id) from relays") == [b"cancel", b"other"]


async def test_claims_that_fill_a_round_bring_their_posts_with_them(connection: Connection) -> None:
    """A round takes claims before posts. A round full of claims could wait for posts that would never be taken."""
    posts = [attrs.evolve(new(bytes([n])), priority=Priority.BATCH_POST) for n in range(3)]
    claims = [
        attrs.evolve(post, kind=RelayKind.CLAIM, dedupe=b"claim" + post.subject, priority=Priority.OP) for post in posts
    ]
    await outbox_sql.submit_all(connection, [*posts, *claims], max_depth=10)
    taken = await queue_sql.take_relays(connection, 2, 0)
    assert [relay.kind for relay in taken] == ["claim", "claim", "post", "post"]
    assert [relay.id for relay in taken[2:]] == [relay.id - 3 for relay in taken[:2]]


async def test_requeued_op_waits_for_its_dependency(connection: Connection) -> None:
    post = new(b"a")
    claim, settle = (
        attrs.evolve(post, kind=kind, dedupe=kind.encode(), priority=Priority.OP)
        for kind in (RelayKind.CLAIM, RelayKind.SETTLE)
    )
    await outbox_sql.submit_all(connection, [post, claim, settle], max_depth=10)
    await connection.execute("update relays set requeued = 1 where kind = 'claim'")
    assert [relay.kind for relay in await queue_sql.take_relays(connection, 1, 0)] == ["settle", "post"]


async def test_live_relays_of_a_subject_are_read_oldest_first(connection: Connection) -> None:
    tx_id = await signed(connection, 0, b"a")
    await submit(connection, attrs.evolve(new(b"a"), dedupe=b"behind"), max_depth=10)
    await queued(connection, b"of another subject")
    undecided = await results_sql.find_undecided_of_same_subjects(connection, [2])
    assert [(relay.id, relay.tx_id) for relay in undecided] == [(1, tx_id), (2, None)]
    await mine(connection, tx_id)
    assert [relay.id for relay in await results_sql.find_undecided_of_same_subjects(connection, [2])] == [2]


JOBS: Final = [bytes([number]) * 32 for number in (1, 2, 3)]


def context(number: int) -> str:
    return f"00-{number:032x}-{number:016x}-01"


async def mined_with_traces(connection: Connection, kind: RelayKind) -> MinedTx:
    """Mine a transaction with three relays, the first and third of which are traced."""
    relays = [NewRelay(kind, job, job, TARGET, b"", Priority.OP) for job in JOBS]
    queued = await outbox_sql.submit_all(connection, relays, max_depth=10)
    ids = [each.id for each in queued if isinstance(each, QueuedRelay)]
    tx = await insert_signed(connection, ACCOUNT, 0, ids)
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
    await record_spans(RoleConnection(connection), [await mined_with_traces(connection, RelayKind.POST)])  # type: ignore[arg-type]
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
    await mined_with_traces(connection, RelayKind.CLAIM)
    header = BlockHeader("0x7", "0x" + "11" * 32, "0x" + "22" * 32, "0x1", "0x0")
    events = [(7, number, JobClaimed(job, 1, 1)) for number, job in enumerate(JOBS)]
    settled = (7, 3, JobSettled(JOBS[0], 1, 1, 1, 0, 0, "cid"))  # its settle is not traced
    await record_index_span(connection, [BlockRange([header], [*events, settled])], 1.0, 2.0)
    (span,) = made_spans.get_finished_spans()
    assert (span.name, trace_of(span)) == ("index", 1)
    assert [link.context.trace_id for link in span.links] == [3]
    assert await traces_sql.read_contexts_of_orders(connection, JOBS) == {}
