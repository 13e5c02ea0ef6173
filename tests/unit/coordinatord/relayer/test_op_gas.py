"""The table of gas by kind of op, and how receipts update it."""

import json
from pathlib import Path

import pytest

from common import contracts
from coordinatord.chain.relayer.op_gas import (
    GAS_BY_KIND,
    INCLUDED_CALLDATA_BYTES,
    MAX_TOKEN_CALL_GAS,
    TOKEN_CALL_GAS,
    PlannedGas,
    expected_share,
    gas_estimate,
)
from coordinatord.chain.relayer.outbox_sql import RelayKind

SNAPSHOTS = Path(contracts.__path__[0]) / "snapshots"
SHARED_KINDS = [kind for kind, gas in GAS_BY_KIND.items() if gas[1] is not None]
UPKEEP = RelayKind.PUBLISH


def of_snapshot(name: str) -> dict[RelayKind, int]:
    figures = json.loads((SNAPSHOTS / f"{name}.json").read_text())
    return {kind: int(figures[kind.value]) for kind in RelayKind if kind.value in figures}


def test_every_kind_has_its_gas() -> None:
    assert set(GAS_BY_KIND) == set(RelayKind)


def test_no_snapshot_of_an_op_alone_is_above_the_table() -> None:
    found = of_snapshot("alone")
    assert set(found) == {RelayKind.POST, RelayKind.CLAIM, RelayKind.SETTLE, RelayKind.FAIL, RelayKind.RECLAIM}
    assert {kind: gas for kind, gas in found.items() if gas > gas_estimate(kind)} == {}


@pytest.mark.parametrize("name", ["one_client", "forty_clients", "forty_emptied_clients"])
def test_no_snapshot_of_a_relay_is_above_the_table(name: str) -> None:
    found = of_snapshot(name)
    assert set(found) == {RelayKind.POST, RelayKind.CLAIM, RelayKind.SETTLE, RelayKind.FAIL}
    assert {
        kind: gas for kind, gas in found.items() if gas > (expected_share(kind, INCLUDED_CALLDATA_BYTES) or 0)
    } == {}


@pytest.mark.parametrize(
    ("snapshot", "ops", "most"),
    [
        ("forty_clients", ["life"], 155_000),
        ("alone", ["post", "claim", "settle"], 100 * 3_500),  # a tab of 100 chat requests is one job
    ],
)
def test_gas_of_a_job_stays_within_its_limit(snapshot: str, ops: list[str], most: int) -> None:
    figures = json.loads((SNAPSHOTS / f"{snapshot}.json").read_text())
    assert sum(int(figures[op]) for op in ops) <= most


def test_further_calldata_counts_by_its_floor_price() -> None:
    assert gas_estimate(UPKEEP, INCLUDED_CALLDATA_BYTES) == gas_estimate(UPKEEP)
    assert gas_estimate(UPKEEP, INCLUDED_CALLDATA_BYTES + 100) == gas_estimate(UPKEEP) + 4100
    assert (
        expected_share(RelayKind.POST, INCLUDED_CALLDATA_BYTES + 100) == (expected_share(RelayKind.POST, 0) or 0) + 4100
    )


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_kind_of_the_table_needs_no_estimate(kind: RelayKind) -> None:
    gas = PlannedGas()
    limit = gas.limit(kind, 500)
    assert limit == gas_estimate(kind) + TOKEN_CALL_GAS
    assert gas.share(kind, 500, limit) == (expected_share(kind, 500) or 0) * 5 // 4


def test_upkeep_is_planned_by_its_estimate() -> None:
    gas = PlannedGas()
    assert gas.limit(UPKEEP, 500) is None
    assert gas.share(UPKEEP, 500, 77_000) == 77_000
    gas.learn_estimate(UPKEEP, 500, 9_000_000)
    assert gas.token_call_gas == TOKEN_CALL_GAS


def test_share_never_exceeds_the_op_alone() -> None:
    assert PlannedGas().share(RelayKind.POST, 500, 60_000) == 60_000


def test_limit_follows_a_token_call_that_an_admin_made_dearer() -> None:
    gas = PlannedGas()
    gas.learn_estimate(RelayKind.SETTLE, 500, gas_estimate(RelayKind.SETTLE) + 700_000)
    gas.learn_estimate(RelayKind.SETTLE, 500, 300_000)
    assert gas.limit(RelayKind.CLAIM, 500) == gas_estimate(RelayKind.CLAIM) + 700_000


def test_gas_limit_stays_within_the_registrys_maximum() -> None:
    gas = PlannedGas()
    gas.learn_estimate(RelayKind.SETTLE, 500, 1 << 60)
    assert gas.limit(RelayKind.CLAIM, 500) == gas_estimate(RelayKind.CLAIM) + MAX_TOKEN_CALL_GAS


def test_gas_correction_rises_fast_and_falls_slowly() -> None:
    gas = PlannedGas()
    gas.learn_usage(2_000_000, 3_000_000)
    assert gas.correction == 1.5
    assert gas.share(RelayKind.POST, 500, 380_000) == int((expected_share(RelayKind.POST, 500) or 0) * 1.5) * 5 // 4
    gas.learn_usage(2_000_000, 1_000_000)
    assert gas.correction == 1.375
    for _ in range(20):
        gas.learn_usage(2_000_000, 1_000_000)
    assert gas.correction == 1.0


def test_a_relay_of_few_ops_teaches_nothing() -> None:
    gas = PlannedGas()
    gas.learn_usage(999_999, 1_500_000)
    assert gas.correction == 1.0


def test_a_relay_that_starved_doubles_shares_within_bounds() -> None:
    gas = PlannedGas()
    gas.learn_out_of_gas()
    assert gas.correction == 2.0
    for _ in range(5):
        gas.learn_out_of_gas()
    assert gas.correction == 4.0
