"""Reasons why a provider has no work, in the order in which its page shows them."""

from typing import Any

import attrs
import pytest

from svcd.backends.discount import AskRates
from svcd.coordinator.client import PostedAsk
from svcd.operator.page.idle import DaemonState, ModelState, PricePosition, idle_reasons, price_positions
from svcd.stages.health import ClaimHold
from tests.unit.svcd.stages.running import model_for

MODEL = ModelState("demo/text-small", True, 4, 0, 4, 0.0, 0, False, 5.0, 725.0)
PRICE = PricePosition("demo/text-small", 3600, 10, 20, 3, 4, 5, 9)
IDLE = DaemonState(
    connected=True,
    problem=None,
    claim_holds=(),
    granted=4,
    listed=True,
    uptime_s=4000.0,
    models=(MODEL,),
    prices=(PRICE,),
)


def said(daemon: DaemonState) -> list[str]:
    return [reason.said for reason in idle_reasons(daemon)]


def test_price_and_silence_explain_a_sound_daemon() -> None:
    assert said(IDLE) == [
        "priced above 3 of 4 competitors on demo/text-small in the window of 1 hour",
        "no orders for 12 minutes on demo/text-small",
    ]
    assert not any(reason.blocks for reason in idle_reasons(IDLE))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"connected": False}, "the coordinator has not answered since the start"),
        ({"claim_holds": (ClaimHold("box_key", "the box key is 0x1, the registry has 0x2"),)}, "box key differs"),
        ({"problem": "the journal cannot be read or written"}, "the journal cannot be read or written"),
        ({"listed": False}, "this provider is not listed"),
        ({"granted": 0}, "the market grants this provider no slots"),
    ],
)
def test_reason_of_the_whole_daemon_hides_those_of_models(changed: dict[str, Any], expected: str) -> None:
    assert said(attrs.evolve(IDLE, **changed)) == [expected]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"offered": False}, ["demo/text-small is not in the market's catalogue"]),
        ({"circuit_open": True}, ["the backend of demo/text-small failed 3 jobs in a row"]),
        ({"load": 0.9}, ["the backend of demo/text-small is fully loaded by other work"]),
        ({"held": 1}, []),
        ({"seconds_since_orders": 30.0}, []),
        (
            {"seconds_since_orders": None},
            [
                "priced above 3 of 4 competitors on demo/text-small in the window of 1 hour",
                "no orders for 1 hour on demo/text-small, since svcd started",
            ],
        ),
    ],
)
def test_reason_of_one_model(changed: dict[str, Any], expected: list[str]) -> None:
    assert said(attrs.evolve(IDLE, models=(attrs.evolve(MODEL, **changed),))) == expected


def test_held_back_model_is_named_and_does_not_hide_the_others() -> None:
    hold = ClaimHold(
        "backend", "other: the backend does not answer: start the backend, or correct its address", "other"
    )
    both = attrs.evolve(
        IDLE, models=(attrs.evolve(MODEL, name="other"), MODEL), claim_holds=(hold,), problem=hold.detail, prices=()
    )
    assert said(both) == ["model server does not answer", "no orders for 12 minutes on demo/text-small"]


def test_price_is_compared_within_its_window() -> None:
    model = model_for("demo/text", {"text"}, asks={60: AskRates(10, 20)})
    rows = [(7, 1, 60, 1, 1), (8, 1, 60, 9, 20), (9, 1, 60, 12, 19), (8, 1, 600, 1, 1), (8, 2, 60, 1, 1)]
    asks = [PostedAsk(provider_id=p, model_id=m, sla=s, rate_in=i, rate_out=o) for p, m, s, i, o in rows]
    (position,) = price_positions(model, 1, 7, asks)
    assert (position.above, position.competitors) == (1, 2)
    assert (position.lowest_in, position.lowest_out) == (9, 20)
