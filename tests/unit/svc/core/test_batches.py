import json
from typing import Any

import pytest

from common.quotes import CostParts
from common.refusal import Refused
from svc.core.batch_bids import BidChooser, ModelDemand, plan_bodies, sum_demands
from svc.core.batch_lines import read_lines
from svc.core.bids import Bid, Rates
from svc.core.bundles import UNBUNDLED_LIMITS, BundleLimits, line_count, read_job_sizes, sizes_metadata, split_cost
from svc.core.order_request import OrderRequest, PricedRequest, price_request
from svc.errors import OrderRefused, PlanShort
from svc.records import Allocation, Model, ModelDetails, ModelPlan

TEXT, OTHER = (Model(name, "x", ModelDetails(number, True)) for number, name in ((1, "text"), (2, "other")))


def shaped(model: Model = TEXT, rate: int | None = None) -> PricedRequest:
    request = OrderRequest(model.id, {"input": "12345", "max_tokens": 10}, rate_in=rate)
    return price_request(request, model)


def plan(model_id: int, *shares: tuple[int, int]) -> ModelPlan:
    """Return a plan. `shares`: pairs of provider and lines. Both rates equal the provider's id."""
    allocation = tuple(Allocation(who, f"0x{who}", who, who, lines) for who, lines in shares)
    return ModelPlan(model_id, sum(lines for _, lines in shares), allocation)


def bids(lines: list[PricedRequest], plans: list[ModelPlan], providers: list[tuple[int, str]]) -> list[Bid]:
    offered = BidChooser(providers, lambda *_: UNBUNDLED_LIMITS)
    offered.use_plans(plans)
    return [job.bid for job in offered.cut_into_jobs(lines)]


def cut(
    lines: list[PricedRequest], plans: list[ModelPlan], limits: dict[int, BundleLimits], *providers: int
) -> list[tuple[int, int]]:
    """Return the provider and the number of lines of each job."""
    offered = BidChooser(
        [(each, f"0x{each}") for each in providers], lambda provider, _: limits.get(provider, UNBUNDLED_LIMITS)
    )
    offered.use_plans(plans)
    jobs = list(offered.cut_into_jobs(lines))
    assert [job.first_line_number for job in jobs] == [
        1 + sum(len(job.lines) for job in jobs[:n]) for n in range(len(jobs))
    ]
    return [(job.bid.designated, len(job.lines)) for job in jobs]


def test_demand_is_totalled_per_model_over_lines_without_rates() -> None:
    lines = [shaped(), shaped(OTHER), shaped(rate=5), shaped()]
    units = lines[0].units
    assert sum_demands(lines) == [
        ModelDemand("text", 1, 2, 2 * units.units_in, 20),
        ModelDemand("other", 2, 1, units.units_in, 10),
    ]


def test_plan_is_asked_for_sixteen_models_at_a_time() -> None:
    wanted = [ModelDemand(str(n), n, 1, 2, 3) for n in range(33)]
    bodies = list(plan_bodies(wanted, "24h"))
    assert [len(body["models"]) for body in bodies] == [16, 16, 1]
    assert bodies[2] == {
        "completion_window": "24h",
        "models": [{"model_id": 32, "lines": 1, "units_in": 2, "units_out": 3}],
    }


def test_planned_lines_follow_their_allocation() -> None:
    lines = [shaped(), shaped(rate=5), shaped(OTHER), shaped(), shaped(rate=6), shaped(rate=7), shaped()]
    plans = [plan(1, (10, 2), (11, 1)), plan(2, (12, 1))]
    assert [(bid.designated, bid.rates) for bid in bids(lines, plans, [(20, "0x20"), (21, "0x21")])] == [
        (10, Rates(10, 10)),
        (20, Rates(5, 0)),
        (12, Rates(12, 12)),
        (10, Rates(10, 10)),
        (21, Rates(6, 0)),
        (20, Rates(7, 0)),
        (11, Rates(11, 11)),
    ]


def test_rated_lines_without_given_providers_are_open() -> None:
    assert bids([shaped(rate=5)], [], []) == [Bid(Rates(5, 0), 0, None)]


@pytest.mark.parametrize("plans", [[], [plan(1, (10, 1))]])
def test_allocation_short_of_the_lines_is_refused(plans: list[ModelPlan]) -> None:
    with pytest.raises(PlanShort) as short:
        bids([shaped(), shaped()], plans, [])
    assert (short.value.planned, short.value.wanted) == (sum(len(one.allocation) for one in plans), 2)


def test_only_announcing_providers_get_bundles() -> None:
    limits = {11: BundleLimits(4)}
    assert cut([shaped()] * 9, [plan(1, (10, 2), (11, 2))], limits) == [(10, 1), (10, 1), (11, 4), (11, 3)]
    assert cut([shaped(rate=5)] * 2, [], limits) == [(0, 1), (0, 1)]  # open


def test_only_consecutive_lines_of_a_model_and_rates_share_a_job() -> None:
    limits = {10: BundleLimits(100)}
    plans = [plan(1, (10, 9)), plan(2, (10, 9))]
    assert cut([shaped(), shaped(), shaped(OTHER), shaped()], plans, limits) == [(10, 2), (10, 1), (10, 1)]
    equal = [shaped(rate=5)] * 2 + [shaped(rate=6)]
    # without rate_out, input cannot be counted in units of output
    assert [lines for _, lines in cut(equal, [], limits, 10)] == [1, 1, 1]


def test_named_providers_take_bundles_in_turn() -> None:
    request = OrderRequest(TEXT.id, {"input": "12345"}, rate_in=1, rate_out=1)
    lines = [price_request(request, TEXT)] * 7
    assert cut(lines, [], {20: BundleLimits(3)}, 20, 21) == [(20, 3), (21, 1), (20, 3)]


def test_measured_provider_takes_more_jobs_within_its_time() -> None:
    # A line has 10 units out and 9 in, at equal rates: 19 units.
    lines = [shaped()] * 12
    assert lines[0].units.units_in == 9
    assert cut(lines[:6], [plan(1, (10, 1))], {10: BundleLimits(2, 6 * 19)}) == [(10, 2)] * 3
    with pytest.raises(PlanShort) as short:
        cut(lines[:7], [plan(1, (10, 1))], {10: BundleLimits(2, 6 * 19)})
    assert short.value.planned == 6
    assert cut(lines[:6], [plan(1, (10, 2))], {10: BundleLimits(100, 3 * 19)}) == [(10, 3)] * 2


def test_bundle_has_at_most_four_mebibytes_of_input() -> None:
    request = OrderRequest(TEXT.id, {"input": "x" * 2**20, "max_tokens": 1})
    lines = [price_request(request, TEXT)] * 4
    assert cut(lines, [plan(1, (10, 9))], {10: BundleLimits(100)}) == [(10, 3), (10, 1)]


def test_images_are_single_jobs() -> None:
    image = price_request(OrderRequest(TEXT.id, {"prompt": "a cat", "num_images": 1}), TEXT)
    assert cut([shaped(), image, image], [plan(1, (10, 9))], {10: BundleLimits(100)}) == [(10, 1)] * 3


BODY = {"model": "m", "input": "hello"}


def line(**changed: Any) -> dict[str, Any]:
    return {"body": BODY} | changed


def test_terms_are_removed_from_the_models_input() -> None:
    body = {"model": "m", "rate_in": "5", "rate_out": 6, "units_out": 7, "prompt": "p", "max_tokens": 3}
    (read,) = read_lines([json.dumps({"custom_id": "a", "method": "POST", "body": body})], "1h")
    assert (read.url, read.rates) == ("/v1/responses", Rates(5, 6))
    assert read.request == OrderRequest(
        model="m",
        input={"prompt": "p", "max_tokens": 3},
        window="1h",
        rate_in="5",
        rate_out=6,
        units_out=7,
        endpoint="/v1/responses",
        custom_id="a",
    )


def test_lines_are_text_bytes_or_objects() -> None:
    texts = [json.dumps(line()), "", b"  \n", json.dumps(line()).encode() + b"\n", line()]
    assert [one.number for one in read_lines(texts, "1h")] == [1, 2, 3]


def test_embeddings_are_a_batch_of_their_own() -> None:
    read = read_lines([line(url="/v1/embeddings"), line(url="/v1/embeddings")], "1h")
    assert {one.url for one in read} == {"/v1/embeddings"}


@pytest.mark.parametrize(
    ("lines", "place", "param"),
    [
        ([line(custom_id="a"), line(), line(custom_id="a")], "line 3", "custom_id"),
        ([line(custom_id="")], "line 1", "custom_id"),
        ([line(custom_id="x" * 65)], "line 1", "custom_id"),
        ([line(custom_id=5)], "line 1", "custom_id"),
        ([line(), line(url="/v1/embeddings")], "line 2", "url"),
        ([line(url="/v1/chat/completions")], "line 1", "url"),
        ([line(body={"input": "x"})], "line 1", "body.model"),
        ([line(body="x")], "line 1", "body"),
        ([line(), line(body={**BODY, "rate_out": "-1"})], "line 2", "rate_out"),
        ([{"model": "m", "input": "x"}], "line 1", "model"),
        ([line(), "[1]"], "line 2", None),
        ([line(), "{broken"], "line 2", None),
        ([line()] * 50_001, "line 50001", None),
    ],
)
def test_line_that_breaks_a_rule_is_refused_by_its_number(lines: list[Any], place: str, param: str | None) -> None:
    with pytest.raises(OrderRefused) as refused:
        list(read_lines(lines, "1h"))
    assert refused.value.message.startswith(f"{place}: ")
    assert refused.value.param == param


def test_batch_without_lines_is_refused() -> None:
    with pytest.raises(OrderRefused) as refused:
        list(read_lines(["", " "], "1h"))
    assert refused.value.code == "empty_file"


@pytest.mark.parametrize("sizes", [[3], [1, 2], [256] * 39 + [16], [n % 7 + 1 for n in range(600)]])
def test_sizes_survive_the_metadata(sizes: list[int]) -> None:
    metadata = sizes_metadata(sizes, 16)
    assert all(len(value) <= 512 for value in metadata.values())
    assert read_job_sizes(metadata) == tuple(sizes)
    assert line_count(metadata, 7) == sum(sizes)


def test_batch_may_have_as_many_jobs_as_lines() -> None:
    assert read_job_sizes({"svc-lines": "1*50000"}) == (1,) * 50_000


def test_batch_without_bundles_has_a_line_for_each_job() -> None:
    assert sizes_metadata([1] * 9, 0) == {}
    assert (read_job_sizes({"run": "7"}), line_count({"run": "7"}, 9)) == (None, 9)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Refused, match="split the file, or use bundle=1"):
        sizes_metadata([n % 7 + 1 for n in range(600)], 2)


@pytest.mark.parametrize("text", ["", "0", "2*0", "-1", "1  2", "3*x", "1e3", "50001", "1*50000 1", "99999*99999", "٣"])
def test_malformed_or_excessive_sizes_are_refused(text: str) -> None:
    with pytest.raises(Refused):
        read_job_sizes({"svc-lines": text})
    assert line_count({"svc-lines": text}, 4) == 4


def test_cost_of_equal_weights_is_divided_to_the_unit() -> None:
    parts = split_cost(CostParts(10, 1, 2000), [0, 0, 0])
    assert [part.provider for part in parts] == [3, 3, 4]
    assert sum(part.total for part in parts) == 2011
