"""Gas bookings and the budget that they leave for the next request, in the tables alone."""

import itertools

import anyio
import attrs
import pytest

from coordinatord.chain.relayer import budgets_sql, outbox_sql, results_sql, transactions_sql
from coordinatord.chain.relayer.budgets_sql import (
    ALL_NEWCOMERS,
    Budget,
    GasLimits,
    Spending,
    count_fitting_ops,
    read_top_spenders,
)
from coordinatord.chain.relayer.outbox_sql import (
    NewRelay,
    NotQueued,
    PaymentPromise,
    Priority,
    QueuedRelay,
    QueueOutcome,
    RelayKind,
)
from coordinatord.chain.relayer.results_sql import RefusedCall
from coordinatord.chain.relayer.transactions_sql import MinedTx
from coordinatord.storage.database.connections import Connection, Database
from tests.integration.coordinatord.book.market_rows import add_jobs, begin_index
from tests.integration.coordinatord.relayer.running import BOOK, insert_signed

CHAIN, ACCOUNT, TARGET = 1, b"\xaa" * 20, b"\x01" * 20
BLOCK = b"\xbb" * 32
ALICE, BOB = b"\x0a" * 20, b"\x0b" * 20


@pytest.fixture(autouse=True)
async def _index(connection: Connection) -> None:
    await begin_index(connection)


_names = itertools.count()


def post(
    signer: bytes | None = ALICE,
    *,
    estimate: int = 100,
    hour: int = 10**9,
    day: int = 10**9,
    newcomers: tuple[int, int] | None = None,
    promise: PaymentPromise | None = None,
    kind: RelayKind = RelayKind.POST,
) -> NewRelay:
    name = next(_names).to_bytes(32, "big")
    spending = None
    if signer is not None:
        budget = Budget.CANCELS if kind is RelayKind.CANCEL else Budget.POSTS
        spending = Spending(signer, estimate, GasLimits(budget, hour, day, newcomers))
    return NewRelay(kind, name, name, TARGET, b"", Priority.POST, signer, estimate, spending, promise)


async def submit(connection: Connection, *relays: NewRelay) -> list[QueueOutcome]:
    return await outbox_sql.submit_all(connection, relays, max_depth=1000)


async def signed(connection: Connection, nonce: int, *relays: NewRelay) -> int:
    """Insert a transaction that carries the relays. Return its id."""
    ids = [one.id for one in await submit(connection, *relays) if isinstance(one, QueuedRelay)]
    assert len(ids) == len(relays)
    return (await insert_signed(connection, ACCOUNT, nonce, ids)).id


async def mine(
    connection: Connection, tx_id: int, gas: int, *refused: RefusedCall, is_self_transfer: bool = False, block: int = 7
) -> dict[str, int]:
    mined = MinedTx(tx_id, bytes(32), block, BLOCK, succeeded=True, gas_used=gas, is_self_transfer=is_self_transfer)
    await transactions_sql.record_mined(connection, [mined])
    booked = await budgets_sql.book_gas(connection, [mined])
    await results_sql.end_carried_relays(connection, [tx_id], refused)
    return booked


async def spent(connection: Connection) -> dict[tuple[bytes, str], int]:
    rows = await connection.fetch("select signer, kind, sum(gas)::bigint as gas from gas_bookings group by 1, 2")
    return {(row["signer"], row["kind"]): row["gas"] for row in rows}


async def spend(connection: Connection, signer: bytes, gas: int, *, hours_ago: int = 0) -> None:
    await connection.execute(BOOK, signer, gas, hours_ago)


async def fits(connection: Connection, signer: bytes, gas: int, hour: int, day: int) -> bool:
    found: bool = await connection.fetchval("select gas_fits($1, 'posts', $2, $3, $4)", signer, gas, hour, day)
    return found


# --- bookings ------------------------------------------------------------------------------------------------


async def test_booked_shares_sum_to_the_gas_used(connection: Connection) -> None:
    tx_id = await signed(
        connection,
        0,
        post(ALICE, estimate=100),
        post(BOB, estimate=300),
        post(None, estimate=0, kind=RelayKind.RECLAIM),
    )
    booked = await mine(connection, tx_id, 1003)
    sums = await spent(connection)
    assert sum(sums.values()) == sum(booked.values()) == 1003
    assert sums[ALICE, "post"] == 250
    assert sums[BOB, "post"] == 1003 * 400 // 401 - 250
    assert sums[b"", "reclaim"] == 1003 - 1003 * 400 // 401


async def test_refused_call_in_a_mined_transaction_is_booked(connection: Connection) -> None:
    tx_id = await signed(connection, 0, post(ALICE), post(BOB))
    await mine(connection, tx_id, 1000, RefusedCall(tx_id, 1, "StaleOp", b"\x01"))
    assert await spent(connection) == {(ALICE, "post"): 500, (BOB, "post"): 500}


async def test_transaction_is_unbooked_and_rebooked_exactly(connection: Connection) -> None:
    tx_id = await signed(connection, 0, post(ALICE, newcomers=(10**9, 10**9)), post(BOB))
    await mine(connection, tx_id, 1001)
    assert await mine(connection, tx_id, 1001) == {}
    once = await spent(connection)
    assert once == {(ALICE, "post"): 500, (BOB, "post"): 501}
    await connection.execute("update gas_bookings set hour = hour - 1")
    await results_sql.unmine_blocks(connection, CHAIN, ACCOUNT, [BLOCK])
    assert await spent(connection) == {}
    await mine(connection, tx_id, 1001)
    assert await spent(connection) == once
    assert await connection.fetchval("select count(distinct hour) from gas_bookings where hour = current_hour()") == 1


async def test_self_transfer_in_the_place_of_relays_is_nobodys(connection: Connection) -> None:
    tx_id = await signed(connection, 0, post(ALICE))
    await mine(connection, tx_id, 21_000, is_self_transfer=True)
    assert await spent(connection) == {(b"", "fill"): 21_000}


async def test_bookings_are_removed_with_their_transaction(connection: Connection) -> None:
    tx_id = await signed(connection, 0, post(BOB))
    await mine(connection, tx_id, 7)
    await connection.execute("delete from relays")
    await connection.execute("delete from relay_tx_versions")
    await connection.execute("delete from relay_txs")
    assert await connection.fetchval("select count(*) from gas_bookings") == 0


async def test_top_spenders_are_those_of_a_day_with_the_hour_apart(connection: Connection) -> None:
    await spend(connection, ALICE, 5, hours_ago=1)
    await spend(connection, ALICE, 10)
    await spend(connection, BOB, 40, hours_ago=23)
    await spend(connection, BOB, 1000, hours_ago=24)
    found = await read_top_spenders(connection, 10)
    assert [attrs.astuple(one) for one in found] == [(BOB, "post", 0, 40), (ALICE, "post", 10, 15)]
    await mine(connection, await signed(connection, 0, post(BOB, newcomers=(10**9, 10**9))), 60)
    (newcomers,) = [one for one in await read_top_spenders(connection, 10) if one.signer == ALL_NEWCOMERS]
    assert attrs.astuple(newcomers) == (ALL_NEWCOMERS, "post", 60, 60)


# --- budgets -------------------------------------------------------------------------------------------------


async def test_gas_fits_the_hour_and_the_last_24_hours(connection: Connection) -> None:
    assert await fits(connection, ALICE, 1000, 10, 10), "the first of a day passes, whatever it takes"
    await spend(connection, ALICE, 60)
    assert await fits(connection, ALICE, 40, 100, 1000)
    assert not await fits(connection, ALICE, 41, 100, 1000)
    assert await fits(connection, BOB, 41, 100, 1000)
    await spend(connection, ALICE, 30, hours_ago=24)
    await spend(connection, ALICE, 30, hours_ago=20)
    assert await fits(connection, ALICE, 40, 1000, 130)
    assert not await fits(connection, ALICE, 41, 1000, 130)


async def test_concurrent_posts_are_queued_within_the_budget(connection: Connection) -> None:
    outcomes = await submit(connection, *(post(ALICE, estimate=100, day=300) for _ in range(32)))
    assert [type(outcome) for outcome in outcomes] == [QueuedRelay] * 3 + [NotQueued] * 29
    assert await submit(connection, post(ALICE, estimate=100, day=300, kind=RelayKind.CANCEL)) != [
        NotQueued.OVER_BUDGET
    ]


async def test_what_is_under_way_counts_until_its_real_cost_is_booked(connection: Connection) -> None:
    tx_id = await signed(connection, 0, post(ALICE, estimate=100, day=100))
    assert await submit(connection, post(ALICE, estimate=100, day=150)) == [NotQueued.OVER_BUDGET]
    await mine(connection, tx_id, 40)
    (after,) = await submit(connection, post(ALICE, estimate=100, day=150))
    assert isinstance(after, QueuedRelay)


async def test_gas_booked_during_a_check_counts_once(connection: Connection, database: Database) -> None:
    tx_id = await signed(connection, 0, post(ALICE, estimate=100))
    found: list[bool] = []

    async def look() -> None:
        async with database.connection() as other:
            found.append(await fits(other, ALICE, 100, 250, 250))

    async with anyio.create_task_group() as tasks, connection.transaction():
        await connection.execute("lock table gas_bookings in access exclusive mode")  # the check waits here, midway
        tasks.start_soon(look)
        waiting = "select count(*) from pg_locks where relation = 'gas_bookings'::regclass and not granted"
        while not await connection.fetchval(waiting):  # noqa: ASYNC110 - the event is in the database
            await anyio.sleep(0.01)
        await mine(connection, tx_id, 100)
    assert found == [True]


async def test_request_under_way_is_joined_whatever_the_budget(connection: Connection) -> None:
    relay = post(ALICE, estimate=100, day=100)
    (first,) = await submit(connection, relay)
    assert isinstance(first, QueuedRelay)
    assert await submit(connection, relay) == [QueuedRelay(first.id, relay, is_duplicate=True)]


async def test_newcomers_share_a_budget_that_nobody_else_uses(connection: Connection) -> None:
    both = (10**9, 250)
    outcomes = await submit(
        connection,
        post(ALICE, newcomers=both),
        post(BOB, newcomers=both),
        post(b"\x0c" * 20, newcomers=both),
        post(b"\x0d" * 20),
    )
    assert [type(outcome) for outcome in outcomes] == [QueuedRelay, QueuedRelay, NotQueued, QueuedRelay]
    assert outcomes[2] is NotQueued.OVER_NEWCOMERS_BUDGET
    await mine(connection, await signed(connection, 0, post(b"\x0e" * 20, newcomers=(10**9, 10**9))), 20)
    assert await submit(connection, post(b"\x0f" * 20, newcomers=(10**9, 319))) == [NotQueued.OVER_NEWCOMERS_BUDGET]
    (fits,) = await submit(connection, post(b"\x0f" * 20, newcomers=(10**9, 320)))
    assert isinstance(fits, QueuedRelay)


async def test_room_is_what_submitting_one_by_one_would_fit(connection: Connection) -> None:
    limits = GasLimits(Budget.POSTS, 450, 1000, (10**9, 10**9))
    assert await count_fitting_ops(connection, Spending(ALICE, 100, limits), 512) == 4
    assert await count_fitting_ops(connection, Spending(ALICE, 100, limits), 3) == 3
    assert await count_fitting_ops(connection, Spending(ALICE, 500, limits), 512) == 1
    await submit(connection, post(ALICE, estimate=400))
    assert await count_fitting_ops(connection, Spending(ALICE, 100, limits), 512) == 0
    assert await count_fitting_ops(connection, Spending(ALICE, 100, GasLimits(Budget.POSTS, None, None)), 512) == 512


# --- promises ------------------------------------------------------------------------------------------------


async def test_two_posts_at_once_do_not_stand_on_one_balance(connection: Connection) -> None:
    outcomes = await submit(connection, *(post(promise=PaymentPromise(60, 100, 1)) for _ in range(2)))
    assert [type(outcome) for outcome in outcomes] == [QueuedRelay, NotQueued]
    assert outcomes[1] is NotQueued.INSOLVENT
    (other,) = await submit(connection, post(BOB, promise=PaymentPromise(60, 100, 1)))
    assert isinstance(other, QueuedRelay)


async def test_mined_post_counts_until_open_jobs_include_it(connection: Connection) -> None:
    tx_id = await signed(connection, 0, post(promise=PaymentPromise(60)))
    await mine(connection, tx_id, 1, block=7)
    assert await submit(connection, post(promise=PaymentPromise(60, 100, 6))) == [NotQueued.INSOLVENT]
    (indexed,) = await submit(connection, post(promise=PaymentPromise(60, 100, 7)))
    assert isinstance(indexed, QueuedRelay)


async def test_indexed_post_unknown_to_the_relayer_counts_once(connection: Connection) -> None:
    await add_jobs(connection, 1, models=1)
    job: bytes = await connection.fetchval("select job_id from jobs")
    relay = attrs.evolve(post(promise=PaymentPromise(60)), subject=job)
    await submit(connection, relay)
    (beside,) = await submit(connection, post(promise=PaymentPromise(60, 100, 1)))
    assert isinstance(beside, QueuedRelay)
