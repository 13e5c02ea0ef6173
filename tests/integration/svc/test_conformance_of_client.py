"""The scripted markets pass svc as a client, and fail each client that breaks a promise."""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from svc.client import Client
from svc.core.orders import PreparedOrder
from svc.errors import SvcError
from tests.conformance.__main__ import bought_by
from tests.conformance.client import Buy, ClientTrial
from tests.conformance.faulty_markets import PURCHASES
from tests.conformance.verdicts import Report, tried


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def buying(**terms: Any) -> Buy:
    async def buy(environment: Mapping[str, str]) -> tuple[int, str]:
        asked = {"input": environment["SVC_INPUT"], "max_output_tokens": 64}
        async with Client(environment=environment) as client:
            try:
                result = await client.run(environment["SVC_MODEL"], asked, window="1h", **terms)
            except SvcError as refused:
                return 3, str(refused)
        return 0, json.dumps(result.output)

    return buy


async def judged(buy: Buy, *names: str) -> Report:
    purchases = [one for one in PURCHASES if one.tried in names]
    assert len(purchases) == len(names)
    return await ClientTrial(Report(), buy, purchases=purchases).run()


async def test_svc_is_right_in_every_market() -> None:
    trial = ClientTrial(Report(), buying(), buying(rate_in=100_000, rate_out=200_000), at_once=30)
    report = await trial.run()
    assert report.wrong == []
    gave_up = [(tried(row), row.detail) for row in report.unknown]
    # It repeats a submission only after a broken connection, never after an error.
    assert gave_up == [
        ("submission answered 503", "it gave up after one submission: nothing shows how it would send again")
    ]
    assert len(report.right) == len(PURCHASES) + 3


async def test_client_that_signs_other_terms_than_it_sends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    body = PreparedOrder.quote_body

    def changed(order: PreparedOrder) -> dict[str, Any]:
        return {**body(order), "units_out": 65}

    monkeypatch.setattr(PreparedOrder, "quote_body", changed)
    report = await judged(buying(), "ordinary purchase")
    wrong = {tried(row): row.detail for row in report.wrong}
    assert "not signed by its owner over these terms" in wrong["orders"]


async def test_client_that_shows_whatever_it_gets_is_found() -> None:
    """The client shows any response and always exits with success."""

    async def credulous(environment: Mapping[str, str]) -> tuple[int, str]:
        _, wrote = await buying()(environment)
        return 0, wrote

    report = await judged(credulous, "ordinary purchase", "result with a bit turned", "job that failed")
    assert [tried(row) for row in report.wrong] == ["job that failed", "result with a bit turned"]
    assert report.wrong[0].detail.startswith("exit code 0 without the result")


async def test_client_that_buys_again_when_no_answer_comes_is_found() -> None:
    async def impatient(environment: Mapping[str, str]) -> tuple[int, str]:
        await buying()(environment)
        return await buying()(environment)

    report = await judged(impatient, "submission whose answer is lost")
    assert [(tried(v), v.detail) for v in report.wrong] == [("submission whose answer is lost", "2 jobs")]


async def test_client_that_never_ends_is_wrong_when_its_time_is_over() -> None:
    async def endless(_: Mapping[str, str]) -> tuple[int, str]:
        await anyio.sleep_forever()
        return 0, ""

    [ordinary] = [one for one in PURCHASES if one.tried == "ordinary purchase"]
    report = await ClientTrial(Report(), endless, purchases=[ordinary], patience=0.1).run()
    assert [v.detail for v in report.wrong] == ["no end after 0 s"]


async def test_client_that_missed_the_fault_does_not_pass() -> None:
    async def helpless(environment: Mapping[str, str]) -> tuple[int, str]:
        async with Client(environment=environment) as client:
            await client.readiness()
        return 3, ""

    report = await judged(helpless, "quote above the formulas", "another deployment than the address book")
    assert [v.detail for v in report.rows[:2]] == ["it did not come to that"] * 2
    assert not report.holds


async def test_program_gets_only_its_own_markets_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SVC_")]:
        monkeypatch.delenv(name)
    for name in ("SVC_RPC_URL", "SVC_PROFILE", "SVC_ADDRESSES", "SVC_WALLET_KEY", "SVC_BOX_KEY"):
        monkeypatch.setenv(name, "the caller's")
    show = "import os; print(*(f'{name}={os.environ[name]}' for name in sorted(os.environ) if name[:4] == 'SVC_'))"
    told = await bought_by([sys.executable, "-c", show])({"SVC_ADDRESSES": "{}", "SVC_WALLET_KEY": "0x01"})
    assert told == (0, "SVC_ADDRESSES={} SVC_BOX_KEY=the caller's SVC_WALLET_KEY=0x01\n")
