from common.abi import selector
from coordinatord.relayer.coalesce import Planned, Simulated, coalesce
from coordinatord.store.outbox import RelayKind, WaitingRelay

JOBS, PROVIDERS = b"\x01" * 20, b"\x02" * 20
BLOCK = 30_000_000


def simulated(number: int, target: bytes = JOBS, *, gas: int = 100_000, requeued: int = 0) -> Simulated:
    relay = WaitingRelay(number, RelayKind.POST, target, bytes([number]), priority=number % 3, requeued=requeued)
    return Simulated(relay, gas)


def ids(plans: list[Planned]) -> list[list[int]]:
    return [[relay.id for relay in plan.relays] for plan in plans]


def test_relays_of_one_registry_ride_together_in_their_order() -> None:
    mixed = [simulated(1), simulated(2, PROVIDERS), simulated(3), simulated(4, PROVIDERS), simulated(5)]
    plans = coalesce(mixed, most=64, block_gas_limit=BLOCK)
    assert ids(plans) == [[1, 3, 5], [2, 4]]
    assert [plan.target for plan in plans] == [JOBS, PROVIDERS]
    assert plans[0].calldata.startswith(selector("relay(bytes[])"))
    assert [plans[0].call_index(place) for place in range(3)] == [0, 1, 2]


def test_a_single_relay_is_the_whole_transaction() -> None:
    (plan,) = coalesce([simulated(7)], most=64, block_gas_limit=BLOCK)
    assert plan.calldata == b"\x07"
    assert plan.call_index(0) is None
    assert plan.gas > 100_000


def test_no_more_ride_together_than_allowed() -> None:
    assert ids(coalesce([simulated(n) for n in range(1, 6)], most=2, block_gas_limit=BLOCK)) == [[1, 2], [3, 4], [5]]


def test_a_shared_transaction_takes_half_a_block_at_most() -> None:
    plans = coalesce([simulated(n, gas=4_000_000) for n in range(1, 7)], most=64, block_gas_limit=BLOCK)
    assert ids(plans) == [[1, 2, 3], [4, 5, 6]]
    assert all(plan.gas <= BLOCK // 2 for plan in plans)


def test_one_that_came_back_rides_alone_with_more_gas_each_time() -> None:
    plans = coalesce(
        [simulated(1), simulated(2, requeued=1), simulated(3), simulated(4, requeued=2)], most=64, block_gas_limit=BLOCK
    )
    assert ids(plans) == [[1, 3], [2], [4]]
    assert plans[1].gas < plans[2].gas


def test_a_shared_transaction_is_as_urgent_as_its_most_urgent_relay() -> None:
    (plan,) = coalesce([simulated(1), simulated(3)], most=64, block_gas_limit=BLOCK)
    assert plan.priority == 0
