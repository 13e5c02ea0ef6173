"""State that the provider's page shows, what computing it costs, and reasons why a provider has no work."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from common.checks import CheckRow, right
from common.quotes import cap, cost
from svcd.backends.discount import AskRates
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.coordinator.client import PostedAsk
from svcd.journal.work import ModelWork, WorkOutput
from svcd.operator.page.idle import DaemonState, ModelState, PricePosition, idle_reasons, price_positions
from svcd.operator.page.provider_page import STATE_PATH, ProviderPage, is_own_host
from svcd.run.app import build_page_parts
from svcd.stages.health import ClaimHold
from tests.support.fakes.market import Market
from tests.unit.svcd.stages.running import Backend, Running, model_for, running


@attrs.define
class Checks:
    """Answers like `svcd check`, or fails."""

    made: int = 0
    fault: Exception | None = None

    async def __call__(self) -> list[CheckRow]:
        self.made += 1
        await trio.sleep(1)
        if self.fault is not None:
            raise self.fault
        return [right("configuration", "1 model, 4 slots")]


def page_of(one: Running, checks: Checks) -> ProviderPage:
    page = ProviderPage(one.ground.config, one.daemon.health, Clock(one.market.now), checks)
    page.parts = build_page_parts(one.ground)
    return page


async def state_of(page: ProviderPage) -> dict[str, Any]:
    await trio.sleep(1)  # the state is a second old at most
    found: dict[str, Any] = json.loads(await page.state_json())
    return found


@asynccontextmanager
async def shown(page: ProviderPage) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.run)
        yield
        nursery.cancel_scope.cancel()


async def test_job_is_in_hand_with_its_deadline_and_then_earned(market: Market, tmp_path: Path) -> None:
    release = trio.Event()

    async def act(work: ModelWork) -> WorkOutput:
        await release.wait()
        return WorkOutput(work.input, 3)

    async with running(market, tmp_path, backend=Backend(act)) as one:
        page = page_of(one, Checks())
        job = market.post()
        await one.until(lambda: one.entry(job)[0] == "claimed")
        state = await state_of(page)
        (held,) = state["journal"]["jobs"]
        row = market.jobs[job]
        terms = [int(row[name]) for name in ("rate_in", "rate_out", "units_in", "units_out")]
        assert (held["job_id"], held["model"], held["step"]) == (job, "demo/text", "run")
        assert held["deadline"] == pytest.approx(market.now() + int(row["sla_secs"]), abs=60)
        assert held["at_most"] == str(cap(*terms))
        assert state["slots"]["held"] == 1
        release.set()
        assert await one.end_of(job) == ("settled", None)
        state = await state_of(page)
        assert state["journal"]["jobs"] == []
        (day,) = state["journal"]["days"]
        assert (day["settled"], day["earned"], day["failed"]) == (1, str(cost(*terms, completion_tok=3)), 0)
        assert state["journal"]["standing"][-1]["reputation"] == market.reputation


async def test_failed_job_is_shown_with_a_remedy(market: Market, tmp_path: Path) -> None:
    async with running(market, tmp_path) as one:
        job = market.post(market.container(recipient=market.escrow.public))
        assert (await one.end_of(job))[0] == "failed"
        (failure,) = (await state_of(page_of(one, Checks())))["journal"]["failures"]
        assert (failure["job_id"], failure["reason"]) == (job, "unseal_failed")
        assert "svcd check" in failure["remedy"]


async def test_market_is_read_once_a_minute_and_only_for_a_page(market: Market, tmp_path: Path) -> None:
    market.others_asks = {(1, 600): (1, 1)}
    checks = Checks()
    async with running(market, tmp_path) as one:
        page = page_of(one, checks)
        async with shown(page):
            await trio.sleep(600)
            assert checks.made == 0  # no page was open
            assert (await state_of(page))["market"] is None  # it does not wait for the answer
            for _ in range(100):
                async with trio.open_nursery() as pages:
                    for _ in range(20):
                        pages.start_soon(page.state_json)
                await trio.sleep(3)
            assert 5 <= checks.made <= 6  # in 300 seconds
            state = await state_of(page)
            assert state["market"]["checks"][0]["what"] == "configuration"
            assert state["market"]["listed"] is True
            (price,) = (each for each in state["market"]["prices"] if each["model"] == "demo/text")
            assert (price["above"], price["competitors"]) == ("1", "1")
            assert "priced above 1 of 1 competitor on demo/text in the window of 10 minutes" in [
                reason["said"] for reason in state["idle"]
            ]


async def test_requests_that_arrive_together_share_one_state(market: Market, tmp_path: Path) -> None:
    async with running(market, tmp_path) as one:
        page = page_of(one, Checks())
        found: list[bytes] = []

        async def ask() -> None:
            found.append(await page.state_json())

        async with trio.open_nursery() as pages:
            for _ in range(50):
                pages.start_soon(ask)
        assert len({id(each) for each in found}) == 1


async def test_failing_market_is_a_wrong_check_and_reading_goes_on(market: Market, tmp_path: Path) -> None:
    checks = Checks(fault=Unavailable("connection refused"))
    async with running(market, tmp_path) as one:
        page = page_of(one, checks)
        async with shown(page):
            await page.state_json()
            await trio.sleep(5)
            (row,) = (await state_of(page))["market"]["checks"]
            assert (row["what"], row["result"], row["detail"]) == ("market", "WRONG", "connection refused")
            checks.fault = None
            await trio.sleep(120)
            await page.state_json()
            await trio.sleep(70)
            assert (await state_of(page))["market"]["listed"] is True


async def test_page_before_the_coordinator_answered(market: Market, tmp_path: Path) -> None:
    async with running(market, tmp_path) as one:
        page = page_of(one, Checks())
        page.parts = None
        state = await state_of(page)
        assert (state["provider_id"], state["token"]) == (None, None)
        assert [reason["said"] for reason in state["idle"]] == ["the coordinator has not answered since the start"]


async def test_unreadable_journal_leaves_the_rest_of_the_page(market: Market, tmp_path: Path) -> None:
    async with running(market, tmp_path) as one:
        page = page_of(one, Checks())
        page.config = attrs.evolve(page.config, state_directory=tmp_path / "absent")
        state = await state_of(page)
        assert state["journal"] is None
        assert len(state["models"]) == 2


async def test_names_of_other_sites_get_nothing(market: Market, tmp_path: Path) -> None:
    async with running(market, tmp_path) as one:
        page = page_of(one, Checks())
        for path in ("/", STATE_PATH):
            rebound = await page.get_page(path, "attacker.example:9403")
            own = await page.get_page(path, "127.0.0.1:9403")
            assert rebound is not None
            assert own is not None
            assert (rebound.status, own.status) == (421, 200)
        assert await page.get_page("/other", "127.0.0.1:9403") is None


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost:9403", True),
        ("192.0.2.7", True),
        ("[2001:db8::1]:9403", True),
        ("gpu-box:9403", True),
        ("127.0.0.1.attacker.example", False),
        ("localhost.attacker.example:9403", False),
        ("", False),
    ],
)
async def test_host_is_an_address_or_a_configured_name(host: str, own: bool) -> None:
    assert is_own_host(host, "gpu-box") is own


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
