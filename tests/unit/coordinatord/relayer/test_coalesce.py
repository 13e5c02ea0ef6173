from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import abi
from common.abi import selector
from common.messages.jobs import Order
from common.quotes import FeeTerms
from coordinatord.chain.contracts.job_registry import PostedOrder, RegisteredJob, claim_calldata
from coordinatord.chain.relayer.coalesce import (
    RESERVED_EXIT_TX_COUNT,
    PlannedTx,
    Rank,
    SimulatedRelay,
    coalesce,
    limit_in_flight,
    split_affordable,
)
from coordinatord.chain.relayer.op_gas import expected_share
from coordinatord.chain.relayer.outbox_sql import RelayKind, StoredRelay
from coordinatord.chain.relayer.settings import RelayerSettings
from coordinatord.chain.relayer.tx_size import MAX_TX_BYTES, TX_GAS_CAP, TxLimits

JOBS, PROVIDERS = b"\x01" * 20, b"\x02" * 20
ROOM = TxLimits(15_000_000)
CALL = b"\xaa" * 100


def simulated(
    number: int,
    target: bytes = JOBS,
    *,
    gas: int = 100_000,
    requeue_count: int = 0,
    kind: RelayKind = RelayKind.POST,
    size: int = 1,
    share: int | None = None,
    call: bytes | None = None,
    builds_on: int | None = None,
) -> SimulatedRelay:
    relay = StoredRelay(number, kind, b"", target, call or bytes([number]) * size, requeue_count=requeue_count)
    return SimulatedRelay(relay, gas, gas if share is None else share, builds_on)


def chain(*numbers: int, gas: int = 100_000) -> list[SimulatedRelay]:
    """Return a job's ops in the order of a round, most urgent first: settle, claim, post. `numbers` follow the job's
    order."""
    kinds = (RelayKind.POST, RelayKind.CLAIM, RelayKind.SETTLE)
    before = (None, *numbers)
    return [simulated(n, kind=kind, builds_on=b, gas=gas) for n, kind, b in zip(numbers, kinds, before, strict=False)][
        ::-1
    ]


def ids(plans: list[PlannedTx]) -> list[list[int]]:
    return [[relay.id for relay in plan.relays] for plan in plans]


def test_relays_of_one_registry_ride_together_in_their_order() -> None:
    mixed = [simulated(1), simulated(2, PROVIDERS), simulated(3), simulated(4, PROVIDERS), simulated(5)]
    plans = coalesce(mixed, max_ops=64, tx_limits=ROOM)
    assert ids(plans) == [[1, 3, 5], [2, 4]]
    assert [plan.target for plan in plans] == [JOBS, PROVIDERS]
    assert plans[0].calldata.startswith(selector("relay(bytes[])"))
    assert [plans[0].call_index(place) for place in range(3)] == [0, 1, 2]


def test_a_single_relay_is_the_whole_transaction() -> None:
    (plan,) = coalesce([simulated(7)], max_ops=64, tx_limits=ROOM)
    assert plan.calldata == b"\x07"
    assert plan.call_index(0) is None
    assert plan.gas_limit > 100_000


def test_exits_and_cancels_and_the_rest_ride_apart() -> None:
    kinds = [RelayKind.POST, RelayKind.SETTLE, RelayKind.CANCEL, RelayKind.FAIL, RelayKind.CLAIM, RelayKind.RECLAIM]
    plans = coalesce([simulated(n, kind=kind) for n, kind in enumerate(kinds, 1)], max_ops=64, tx_limits=ROOM)
    assert [(plan.rank, ids([plan])[0]) for plan in plans] == [
        (Rank.OTHER, [1, 5]),
        (Rank.EXIT, [2, 4, 6]),
        (Rank.CANCEL, [3]),
    ]


def test_no_more_ride_together_than_allowed() -> None:
    assert ids(coalesce([simulated(n) for n in range(1, 6)], max_ops=2, tx_limits=ROOM)) == [[1, 2], [3, 4], [5]]


def test_a_shared_transaction_stays_within_the_room_for_gas() -> None:
    plans = coalesce([simulated(n, gas=4_000_000) for n in range(1, 7)], max_ops=64, tx_limits=ROOM)
    assert ids(plans) == [[1, 2, 3], [4, 5, 6]]
    assert all(plan.gas_limit <= ROOM.gas for plan in plans)


def test_most_expensive_op_pays_shared_gas() -> None:
    """The registry requires gas for one token call to remain before the last op as well."""
    settles = [simulated(n, gas=400_000, share=50_000, kind=RelayKind.SETTLE) for n in range(1, 40)]
    (plan,) = coalesce(
        [*settles, simulated(40, gas=900_000, share=60_000, kind=RelayKind.SETTLE)], max_ops=64, tx_limits=ROOM
    )
    assert plan.gas_limit == 39 * 50_000 + 900_000
    # A smaller limit puts fewer ops into a transaction.
    fewer = coalesce(settles, max_ops=64, tx_limits=TxLimits(1_200_000))
    assert [len(each.relays) for each in fewer] == [17, 17, 5]
    assert all(each.gas_limit <= 1_200_000 for each in fewer)


def test_transaction_with_unknown_shares_stays_under_the_cap() -> None:
    settles = [simulated(n, gas=300_000, kind=RelayKind.SETTLE, size=420) for n in range(1, 65)]
    plans = coalesce(settles, max_ops=64, tx_limits=TxLimits(TX_GAS_CAP))
    assert len(plans) == 2
    assert all(plan.gas_limit <= TX_GAS_CAP for plan in plans)


def test_shared_transaction_fits_the_nodes_size_limit() -> None:
    large = [simulated(n, kind=RelayKind.SET_IDENTITY, size=33_000) for n in range(1, 8)]
    plans = coalesce(large, max_ops=64, tx_limits=TxLimits(TX_GAS_CAP))
    assert ids(plans) == [[1, 2, 3], [4, 5, 6], [7]]
    assert all(len(plan.calldata) <= MAX_TX_BYTES for plan in plans)


def test_calldata_floor_may_exceed_execution_gas() -> None:
    """EIP-7623: a node rejects a transaction with less gas than the calldata floor."""
    (plan,) = coalesce([simulated(n, size=3_000, gas=21_000) for n in (1, 2)], max_ops=64, tx_limits=ROOM)
    assert plan.gas_limit >= 21_000 + 40 * 6_000


def test_only_shared_transactions_have_expected_gas() -> None:
    kinds = [RelayKind.POST, RelayKind.CLAIM]
    (plan,) = coalesce([simulated(n, kind=kind) for n, kind in enumerate(kinds)], max_ops=64, tx_limits=ROOM)
    assert plan.expected_gas == sum(expected_share(kind, 1) or 0 for kind in kinds)
    alone = coalesce([simulated(n, kind=kind) for n, kind in enumerate(kinds)], max_ops=1, tx_limits=ROOM)
    assert [each.expected_gas for each in alone] == [0, 0]
    upkeep = [simulated(1, kind=RelayKind.PUBLISH), simulated(2, kind=RelayKind.PUBLISH)]
    assert [each.expected_gas for each in coalesce(upkeep, max_ops=64, tx_limits=ROOM)] == [0]


@pytest.mark.parametrize("kind", [RelayKind.POST, RelayKind.SETTLE])
def test_one_that_came_back_rides_alone_with_more_gas_each_time(kind: RelayKind) -> None:
    again = [
        simulated(n, requeue_count=requeue_count, kind=kind) for n, requeue_count in ((1, 0), (2, 1), (3, 0), (4, 2))
    ]
    plans = coalesce(again, max_ops=64, tx_limits=ROOM)
    assert ids(plans) == [[1, 3], [2], [4]]
    assert plans[1].gas_limit < plans[2].gas_limit


def test_single_op_stays_within_the_transaction_limit() -> None:
    (plan,) = coalesce([simulated(1, gas=9_000_000, requeue_count=3)], max_ops=64, tx_limits=ROOM)
    assert plan.gas_limit == ROOM.gas


def test_of_the_room_in_flight_some_is_for_exits_alone() -> None:
    kinds = [RelayKind.POST, RelayKind.SETTLE] * 4
    plans = coalesce([simulated(n, kind=kind) for n, kind in enumerate(kinds, 1)], max_ops=1, tx_limits=ROOM)
    assert ids(limit_in_flight(plans, 100)) == [[2], [4], [6], [8], [1], [3], [5], [7]]
    assert ids(limit_in_flight(plans, RESERVED_EXIT_TX_COUNT + 5)) == [[2], [4], [6], [8], [1]]
    assert ids(limit_in_flight(plans, 3)) == [[2], [4], [6]]


def test_chain_of_ops_keeps_its_order() -> None:
    (plan,) = coalesce(chain(1, 2, 3), max_ops=64, tx_limits=ROOM)
    assert ids([plan]) == [[1, 2, 3]]
    assert plan.rank is Rank.OTHER


def test_claim_uses_the_terms_of_its_post() -> None:
    order = Order(b"c" * 32, 1, 3600, 1, 2, 3, 4, 0, 2_000_000_000)
    job = RegisteredJob(PostedOrder(order, b"\x0a" * 20, FeeTerms(fee_bps=250, gas_fee=1500)), b"\x01" * 65)
    call = claim_calldata(job, 1_900_000_000, b"\x02" * 65)
    short = selector("claimPosted(bytes32,uint64,bytes)") + abi.encode(
        abi.bytes32(job.posted.job_id), abi.uint(1_900_000_000), abi.dynamic_bytes(b"\x02" * 65)
    )
    post = simulated(1, size=400)
    behind = simulated(2, kind=RelayKind.CLAIM, call=call, builds_on=1)
    of_another = simulated(3, kind=RelayKind.CLAIM, call=call, builds_on=9)
    (plan,) = coalesce([post, behind, of_another], max_ops=10, tx_limits=ROOM)
    assert (short in plan.calldata, call in plan.calldata) == (True, True)
    (alone,) = coalesce([behind], max_ops=10, tx_limits=ROOM)
    assert alone.calldata == call


def test_chain_shares_its_least_urgent_rank() -> None:
    alone = simulated(7, kind=RelayKind.SETTLE)
    plans = coalesce([alone, *chain(1, 2, 3), *chain(4, 5, 6), simulated(8)], max_ops=64, tx_limits=ROOM)
    assert [(plan.rank, ids([plan])[0]) for plan in plans] == [
        (Rank.EXIT, [7]),
        (Rank.OTHER, [1, 2, 3, 4, 5, 6, 8]),
    ]
    assert ids(limit_in_flight(list(reversed(plans)), 100)) == [[7], [1, 2, 3, 4, 5, 6, 8]]


def test_dependent_op_keeps_its_own_rank() -> None:
    plans = coalesce([simulated(5, kind=RelayKind.SETTLE, builds_on=4), simulated(6)], max_ops=64, tx_limits=ROOM)
    assert [(plan.rank, ids([plan])[0]) for plan in plans] == [(Rank.EXIT, [5]), (Rank.OTHER, [6])]


def test_a_chain_is_not_split_over_two_transactions_of_one_round() -> None:
    assert ids(coalesce([simulated(9), *chain(1, 2, 3)], max_ops=3, tx_limits=ROOM)) == [[9], [1, 2, 3]]


@pytest.mark.parametrize(("most", "gas", "signed"), [(1, 100_000, [1]), (2, 100_000, [1, 2]), (64, 6_500_000, [1, 2])])
def test_the_end_of_a_chain_that_does_not_fit_stays_queued(most: int, gas: int, signed: list[int]) -> None:
    assert ids(coalesce(chain(1, 2, 3, gas=gas), max_ops=most, tx_limits=ROOM)) == [signed]


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=8),
    st.integers(1, 8),
    st.sampled_from([50_000, 2_000_000, 9_000_000]),
    st.randoms(use_true_random=False),
)
def test_each_op_is_signed_once_after_its_predecessors(lengths: list[int], most: int, gas: int, order: Random) -> None:
    jobs = [range(10 * job, 10 * job + length) for job, length in enumerate(lengths, 1)]
    every = [one for job in jobs for one in chain(*job, gas=gas)]
    order.shuffle(every)
    signed = ids(coalesce(every, max_ops=most, tx_limits=ROOM))
    carried = [number for plan in signed for number in plan]
    assert len(set(carried)) == len(carried)
    assert all(len(plan) <= most for plan in signed)
    for job in jobs:
        (carrier,) = (plan for plan in signed if job[0] in plan)
        assert list(job)[: len(set(carrier) & set(job))] == [number for number in carrier if number in job]
        assert not any(set(job) & set(plan) for plan in signed if plan is not carrier)


RESERVES = {Rank.EXIT: 0, Rank.CANCEL: 100, Rank.OTHER: 300}


def plan(rank: Rank, gas: int) -> PlannedTx:
    return PlannedTx(b"", b"", gas, rank, ())


def test_floors_are_gas_amounts_at_the_offered_price() -> None:
    settings = RelayerSettings(queue_timeout_ms=1, block_time_ms=1, cancel_reserve_gas=10, reserve_gas=30)
    assert settings.reserves(12) == {Rank.EXIT: 0, Rank.CANCEL: 120, Rank.OTHER: 360}


def test_round_leaves_funds_for_more_urgent_ops() -> None:
    plans = [plan(Rank.OTHER, 60), plan(Rank.OTHER, 60), plan(Rank.CANCEL, 150), plan(Rank.EXIT, 150)]
    paid, unpaid = split_affordable(plans, 400, 1, RESERVES)
    assert [(p.rank, p.gas_limit) for p in paid] == [(Rank.OTHER, 60), (Rank.CANCEL, 150), (Rank.EXIT, 150)]
    assert [(p.rank, p.gas_limit) for p in unpaid] == [(Rank.OTHER, 60)]
