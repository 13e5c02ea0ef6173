"""Batches with several lines per job, against a scripted coordinator."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from common.bundle import ItemResult, bundle_output, bundle_units, read_bundle
from common.envelope import ResultBody
from common.pricing.units import Units
from common.sealed_result import seal_result
from svc.batches.results import BatchResult
from svc.client import Client
from svc.core.bundles import MAX_UNMEASURED_BUNDLE_ITEMS, BundleLimits, bundle_limits_for
from svc.errors import OrderRefused, OverCeiling
from svc.market_verifier import MarketRemembered
from svc.records import Ask, Reliability
from tests.unit.svc.batches import test_batches
from tests.unit.svc.batches.test_batches import REGISTRY, batch, opened, submissions
from tests.unit.svc.fake_coordinator import CANDIDATE, FEE_BPS, GAS_FEE, Answer, FakeCoordinator, job

coordinator = test_batches.coordinator

JOB = "0x" + "01" * 32
RATE_IN, RATE_OUT = 1_000_000, 2_000_000


def lines(number: int, **body: object) -> list[dict[str, Any]]:
    return [
        {"custom_id": f"c{n}", "body": {"model": "demo/text", "max_tokens": 5, "input": f"text {n}", **body}}
        for n in range(1, number + 1)
    ]


def announcing(
    coordinator: FakeCoordinator, *, largest: int | None = 500, speed: str | None = None, room: int = 9
) -> None:
    """Provider 7 accepts bundles and has room for this many jobs."""
    reliability = {"window_secs": "1", "settled": "1", "failed": "0", "reclaimed": "0", "median_secs": "1"}
    reliability |= {} if speed is None else {"units_per_sec": speed}
    ask = {"provider_id": "7", "model_id": "1", "sla": "3600", "rate_in": str(RATE_IN), "rate_out": str(RATE_OUT)}
    told = ask | {"reliability": reliability} | ({} if largest is None else {"largest_bundle": largest})
    coordinator.tell("GET /evm/asks", Answer(200, {"asks": [told], "as_of_block": "5"}))
    share = {**CANDIDATE, "lines": str(room)}
    plan = {"plan": [{"model_id": "1", "lines": str(room), "allocation": [share]}]}
    coordinator.tell("POST /v1/batches", Answer(402, plan))


async def sizes(coordinator: FakeCoordinator, number: int, **options: Any) -> tuple[int, ...]:
    prepared = await coordinator.client().batches.prepare(lines(number), window="1h", **options)
    assert prepared.lines == number
    return prepared.sizes


async def test_lines_for_an_announcing_provider_share_jobs(coordinator: FakeCoordinator) -> None:
    announcing(coordinator)
    prepared = await coordinator.client().batches.prepare(lines(70), window="1h")
    first, second = submissions(prepared.content)
    assert (prepared.sizes, prepared.job_ids) == ((64, 6), (first["job_id"], second["job_id"]))
    items = read_bundle(opened(second).input)
    assert [(item.custom_id, item.input["input"], item.units_out) for item in items] == [
        (f"c{n}", f"text {n}", 5) for n in range(65, 71)
    ]
    assert "custom_id" not in opened(second).encode().decode().split('"input"')[0]
    units_in = len('{"input":"text 65","max_tokens":5}') // 4 + 1
    assert (second["units_in"], second["units_out"]) == (1, 6 * 5 + 6 * units_in // 2)
    cap = RATE_IN * 1 // 10**6 + RATE_OUT * second["units_out"] // 10**6
    assert int(second["amount"]) == cap + cap * FEE_BPS // 10_000 + GAS_FEE
    assert prepared.custom_ids == {n: f"c{n}" for n in range(1, 71)}
    assert coordinator.routes().count("POST /v1/jobs") == 1


@pytest.mark.parametrize("number", [1, 70])
async def test_price_is_the_amount_that_prepare_authorises(coordinator: FakeCoordinator, number: int) -> None:
    announcing(coordinator)
    batches = coordinator.client().batches
    price = await batches.price(lines(number), window="1h")
    assert price == (await batches.prepare(lines(number), window="1h")).amount > 0
    assert coordinator.routes().count("POST /v1/jobs") == 2  # a quote each
    with pytest.raises((OverCeiling, OrderRefused), match="costs up to"):
        await batches.price(lines(number), window="1h", max_amount=price - 1)


@pytest.mark.parametrize(
    ("told", "options", "expected"),
    [
        ({"largest": None, "room": 5}, {}, (1, 1, 1, 1, 1)),
        ({"room": 5}, {"bundle": 1}, (1, 1, 1, 1, 1)),
        ({}, {"bundle": 2}, (2, 2, 1)),
        ({"largest": 3}, {}, (3, 2)),
        ({"speed": "1000"}, {}, (5,)),
        ({"speed": "10", "largest": 4}, {}, (4, 1)),
    ],
    ids=["not announced", "off", "the caller's limit", "the provider's limit", "fast", "several per slot"],
)
async def test_size_follows_provider_speed_and_caller(
    told: dict[str, Any], options: dict[str, Any], expected: tuple[int, ...], coordinator: FakeCoordinator
) -> None:
    announcing(coordinator, **told)
    assert await sizes(coordinator, 5, **options) == expected


async def test_slow_provider_gets_only_half_a_window_of_work(coordinator: FakeCoordinator) -> None:
    announcing(coordinator, speed="1")  # 1,800 units; a line has 900 units out and nine in, which cost half
    prepared = await coordinator.client().batches.prepare(lines(4, max_tokens=890), window="1h")
    assert prepared.sizes == (2, 2)


async def test_embeddings_count_their_input_at_its_own_rate(coordinator: FakeCoordinator) -> None:
    announcing(coordinator)
    share = {**CANDIDATE, "rate_out": "0", "lines": "1"}
    plan = {"plan": [{"model_id": "1", "lines": "1", "allocation": [share]}]}
    coordinator.tell("POST /v1/batches", Answer(402, plan))
    embeddings = [{"url": "/v1/embeddings", "body": {"model": "demo/text", "input": "hi"}}] * 2
    prepared = await coordinator.client().batches.prepare(embeddings, window="1h")
    (written,) = submissions(prepared.content)
    assert (written["rate_in"], written["rate_out"], written["units_out"]) == (str(RATE_IN), str(RATE_IN), 8)
    assert [item.units_out for item in read_bundle(opened(written).input)] == [0, 0]


async def test_line_above_the_ceiling_is_named_inside_a_bundle(coordinator: FakeCoordinator) -> None:
    announcing(coordinator)
    dear = [*lines(3), *lines(1, max_tokens=10**6)]
    dear[3]["custom_id"] = "dear"
    with pytest.raises(OrderRefused, match="line 4: the line costs up to"):
        await coordinator.client().batches.prepare(dear, window="1h")


async def test_plan_counts_the_lines_of_bundles(coordinator: FakeCoordinator) -> None:
    announcing(coordinator, room=1)
    (planned,) = await coordinator.client().batches.plan(lines(70), window="1h")
    assert [share.lines for share in planned.allocation] == [64]
    (planned,) = await coordinator.client().batches.plan(lines(70), window="1h", bundle=1)
    assert [share.lines for share in planned.allocation] == [1]


async def test_sizes_are_in_the_metadata_of_the_batch(coordinator: FakeCoordinator) -> None:
    announcing(coordinator)
    client = coordinator.client()
    prepared = await client.batches.prepare(lines(130), window="1h")
    coordinator.tell("POST /v1/batches", Answer(200, batch()))
    await client.batches.create(prepared, metadata={"run": "7"})
    assert coordinator.to("POST /v1/batches")[-1].body["metadata"] == {"run": "7", "svc-lines": "64*2 2"}
    with pytest.raises(OrderRefused, match="must not begin with svc-lines"):
        await client.batches.create(prepared, metadata={"svc-lines-2": "x"})


# --- results ---


UNITS = (9, 4)  # in and out: 17 units at twice the rate out
DONE = ItemResult("completed", "c1", "out 1", {"units": 4}, None, *UNITS)
HALF = ItemResult("completed", "c2", "out 2", {}, None, 9, 0)
FAILED = ItemResult("failed", "c2", error_code="backend_error")
NOT_RUN = ItemResult("not_run", "c3")


async def read(
    coordinator: FakeCoordinator, items: Sequence[ItemResult], *, size: int = 3, more_units: int = 0, **changed: Any
) -> list[BatchResult]:
    """Return the results of a batch: a settled bundle of `size` lines, and a failed one of two."""
    client: Client = coordinator.client(gateways="http://gateway")
    key = (await client._account.result_keys())[0].public
    raw = bytes.fromhex(JOB[2:])
    body = ResultBody(raw, bundle_output(items), {}).encode()
    coordinator.tell("GET http://gateway/ipfs/bafy1", Answer(200, seal_result(key, 31337, REGISTRY, raw, body)))
    charged = bundle_units([_units(item) for item in items], RATE_IN, RATE_OUT) + more_units
    ended = job(JOB, "completed", result_cid="bafy1", completion_tok=str(charged), state=2)
    ended["svc"] |= {"rate_in": str(RATE_IN), "rate_out": str(RATE_OUT), "units_in": "1", "units_out": "1000"}
    ended["svc"] |= {"cost_parts": {"provider": "100", "fee": "3", "gas_fee": "2000"}}
    coordinator.tell(f"GET /v1/jobs/{JOB}", Answer(200, ended))
    told = {"job_id": JOB, "result_cid": "bafy1", "provider": 7, "rate_in": "1", "rate_out": "1", "completion_tok": 3}
    output = {"id": "batch_req_b1_1", "custom_id": None, "error": None, "svc": told}
    output["response"] = {"status_code": 200, "request_id": JOB, "body": None}
    error = {
        **{"id": "batch_req_b1_2", "custom_id": None, "response": None, "svc": {"job_id": None, "line": 2}},
        "error": {"code": "provider_fail", "message": "m"},
    }
    for name, line in (("out", output), ("err", error)):
        coordinator.tell(f"GET /v1/files/{name}/content", Answer(200, json.dumps(line).encode()))
    metadata = {"svc-lines": f"{size} 2"}
    ended_batch = batch("completed", output_file_id="out", error_file_id="err", metadata=metadata)
    coordinator.tell("GET /v1/batches/b1", Answer(200, ended_batch))
    return [one async for one in client.batches.results("b1", **changed)]


def _units(item: ItemResult) -> Any:
    return Units(item.units_in, item.units_out)


async def test_each_line_has_its_result_error_and_cost(coordinator: FakeCoordinator) -> None:
    found = await read(coordinator, (DONE, FAILED, NOT_RUN))
    assert [(one.id, one.line, one.custom_id, one.settled) for one in found] == [
        ("batch_req_b1_1", 1, "c1", True),
        ("batch_req_b1_2", 2, "c2", False),
        ("batch_req_b1_3", 3, "c3", False),
        ("batch_req_b1_4", 4, None, False),  # of the failed job
        ("batch_req_b1_5", 5, None, False),
    ]
    assert [one.error.code if one.error else None for one in found] == [
        *(None, "backend_error", "not_run", "provider_fail", "provider_fail")
    ]
    (first, *_) = found
    assert first.result is not None
    assert (first.result.output, first.result.usage, first.result.cost) == ("out 1", {"units": 4}, 2103)
    assert [one.cost for one in found[1:]] == [None] * 4


async def test_cost_is_divided_by_units_to_the_last_one(coordinator: FakeCoordinator) -> None:
    found = await read(coordinator, (DONE, HALF, NOT_RUN))
    costs = [one.result.cost_parts for one in found if one.result is not None]
    # The first line has 17 of 26 units, the second 9.
    assert [(part.provider, part.fee, part.gas_fee) for part in costs if part] == [(65, 1, 1307), (35, 2, 693)]


@pytest.mark.parametrize(
    ("items", "custom_ids"),
    [((DONE, FAILED), {}), ((DONE, FAILED, NOT_RUN), {2: "another"}), ((FAILED, DONE, NOT_RUN), {1: "c1", 2: "c2"})],
    ids=["an item is missing", "another custom id", "swapped"],
)
async def test_result_with_other_items_is_unreadable(
    items: tuple[ItemResult, ...], custom_ids: dict[int, str], coordinator: FakeCoordinator
) -> None:
    found = await read(coordinator, items, custom_ids=custom_ids)
    assert [(one.line, one.settled, one.error and one.error.code) for one in found[:3]] == [
        (n, True, "malformed_bundle") for n in (1, 2, 3)
    ]
    assert sum(one.cost.total for one in found if one.cost is not None) == 2103


async def test_charge_above_the_delivered_units_is_reported(coordinator: FakeCoordinator) -> None:
    with pytest.warns(
        MarketRemembered, match="charged 10 units for job .*, but delivered 9: order from other providers"
    ):
        found = await read(coordinator, (DONE, FAILED, NOT_RUN), more_units=1)
    assert found[0].result is not None


@pytest.mark.parametrize(
    ("largest", "speed", "limits"),
    [
        (-3, None, BundleLimits(1)),
        (10**9, -1, BundleLimits(MAX_UNMEASURED_BUNDLE_ITEMS)),
        (500, 10**400, BundleLimits(500, 10**400 * 3600 // 2)),
    ],
    ids=["no items", "no speed", "no float"],
)
def test_absurd_announcements_give_possible_limits(largest: int, speed: int | None, limits: BundleLimits) -> None:
    reliability = Reliability(1, 1, 0, 0, 1, speed)
    ask = Ask(7, 1, 3600, 1, 2, largest_bundle=largest, reliability=reliability)
    assert bundle_limits_for(ask, None) == limits
