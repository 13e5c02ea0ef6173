import pytest

from svc.core.batch_bids import Bids, ModelDemand, check_plan, demands, plan_bodies
from svc.core.bids import Bid, Rates
from svc.core.order_request import OrderRequest, PricedRequest, price_request
from svc.errors import PlanShort
from svc.records import Allocation, Model, ModelDetails, ModelPlan

TEXT, OTHER = (Model(name, "x", ModelDetails(number, True)) for number, name in ((1, "text"), (2, "other")))


def shaped(model: Model = TEXT, rate: int | None = None) -> PricedRequest:
    request = OrderRequest(model.id, {"input": "12345", "max_tokens": 10}, rate_in=rate)
    return price_request(request, model)


def plan(model_id: int, *shares: tuple[int, int]) -> ModelPlan:
    """`shares`: provider and lines; the rates are the provider's id, twice over."""
    allocation = tuple(Allocation(who, f"0x{who}", who, who, lines) for who, lines in shares)
    return ModelPlan(model_id, sum(lines for _, lines in shares), allocation)


def bids(lines: list[PricedRequest], plans: list[ModelPlan], providers: list[tuple[int, str]]) -> list[Bid]:
    offered = Bids(providers)
    offered.plan(plans)
    return [offered.bid(line.model.svc.model_id, line.rates) for line in lines]


def test_demand_is_totalled_per_model_over_lines_without_rates() -> None:
    lines = [shaped(), shaped(OTHER), shaped(rate=5), shaped()]
    units = lines[0].units
    assert demands(lines) == [
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


def test_planned_lines_go_to_their_allocation_in_file_order_and_rated_ones_to_the_given_providers_in_turn() -> None:
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
        check_plan(demands([shaped(), shaped()]), plans)
    assert (short.value.planned, short.value.wanted) == (sum(len(one.allocation) for one in plans), 2)
