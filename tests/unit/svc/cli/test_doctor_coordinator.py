"""Doctor's checks of a scripted coordinator."""

import time
from email.utils import formatdate
from typing import Any

import pytest

from common.box import SecretKey
from common.checks import CheckResult, CheckRow
from common.escrow_evidence import report_data
from svc.cli.health import coordinator as checks
from svc.core.clock import ServerClock
from tests.unit.svc.fake_coordinator import (
    MODEL,
    Answer,
    Dropped,
    FakeCoordinator,
    Told,
    failing,
    provider,
    quoting,
)

READY = {"ready": True, "reason": "ready", "cursor": "5", "head_block": "5", "lag": "0"}
KEY = SecretKey(b"\x09" * 32).public
ASK = {"provider_id": "7", "model_id": "1", "sla": "3600", "rate_in": "1", "rate_out": "1"}


async def found(check: checks.Check, coordinator: FakeCoordinator, **options: Any) -> CheckRow:
    (row,) = await checks.run_checks(coordinator.client(**options), {"checked": check})
    return row


@pytest.mark.parametrize(
    ("ahead", "result", "said"),
    [
        (0, CheckResult.RIGHT, "agrees"),
        (300, None, "300 s ahead of this one; svc corrects for it"),
        (-700, None, "700 s behind this one; svc corrects for it"),
        (7200, CheckResult.WRONG, "7200 s ahead of this one"),
        (-7200, CheckResult.WRONG, "7200 s behind this one"),
    ],
)
async def test_clock_is_compared_with_the_coordinators(
    ahead: int, result: CheckResult | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = float(int(time.time()))
    monkeypatch.setattr("svc.client.ServerClock", lambda: ServerClock(local_clock=lambda: now))
    date = formatdate(now + ahead, usegmt=True)
    row = await found(checks.check_clock, FakeCoordinator({"GET /readyz": [Answer(200, READY, {"date": date})]}))
    assert row.result is result
    assert said in row.detail
    assert (not row.remedy) == (result is CheckResult.RIGHT)


@pytest.mark.parametrize(
    ("reason", "lag", "said"),
    [
        ("trailing", "40", "is not ready: trailing; blocks behind the chain: 40"),
        ("cold_start", None, "is not ready: cold_start"),
        ("chain_unreachable", None, "is not ready: chain_unreachable"),
    ],
)
async def test_lagging_index_is_reported_with_its_reason(reason: str, lag: str | None, said: str) -> None:
    behind = {**READY, "ready": False, "reason": reason, "lag": lag}
    row = await found(
        checks.check_coordinator, FakeCoordinator({"GET /readyz": [Answer(503, behind, {"x-request-id": "r"})]})
    )
    assert row.result is CheckResult.WRONG
    assert row.detail.endswith(said)
    assert "wait" in row.remedy


def escrow(key: str = KEY.raw.hex(), **changed: Any) -> Answer:
    evidence = {"type": "static-coordinator-v1", "report_data": report_data(KEY).hex(), "debug": False, "release": 1}
    return Answer(200, {"escrow_public_key": key, "evidence": evidence | changed, "issued_at": 1})


@pytest.mark.parametrize(
    ("answer", "pinned", "result", "remedy"),
    [
        (escrow(), (KEY.raw.hex(),), CheckResult.RIGHT, None),
        (escrow(), ("00" * 32,), CheckResult.WRONG, "if the operator announced the change"),
        (escrow(type="mock-coordinator-v1"), (), CheckResult.WRONG, "--allow-mock-escrow"),
        (escrow(debug=True), (), CheckResult.WRONG, "make no open orders here"),
        (escrow(report_data="11" * 32), (), CheckResult.WRONG, "make no open orders here"),
        (failing(403, "invalid_request_error", "escrow_unavailable"), (), None, "name a provider"),
        (failing(400, "invalid_request_error"), (), CheckResult.WRONG, "contact the operator"),
    ],
    ids=["well", "not pinned", "mock", "debug", "of another key", "none", "trouble"],
)
async def test_unusable_escrow_is_reported_with_a_remedy(
    answer: Answer, pinned: tuple[str, ...], result: CheckResult | None, remedy: str | None
) -> None:
    row = await found(checks.check_escrow, FakeCoordinator({"GET /key": [answer]}), escrow_keys=pinned)
    assert row.result is result
    assert row.remedy == "" if remedy is None else remedy in row.remedy


@pytest.mark.parametrize(("asks", "result"), [([ASK], CheckResult.RIGHT), ([], None)])
async def test_market_without_asks_is_doubtful(asks: list[object], result: CheckResult | None) -> None:
    coordinator = FakeCoordinator({"GET /v1/models": [Answer(200, {"data": [MODEL]})]})
    coordinator.tell("GET /evm/asks", Answer(200, {"asks": asks}))
    assert (await found(checks.check_market, coordinator)).result is result


@pytest.mark.parametrize(
    ("quoted", "result"), [(quoting(), CheckResult.RIGHT), (quoting(to="0x" + "66" * 20), CheckResult.WRONG)]
)
async def test_quote_that_differs_from_the_order_is_wrong(quoted: Told, result: CheckResult | None) -> None:
    coordinator = FakeCoordinator({"GET /v1/models": [Answer(200, {"data": [MODEL]})], "POST /v1/jobs": [quoted]})
    coordinator.tell("GET /evm/providers", Answer(200, {"providers": [provider()]}))
    assert (await found(checks.check_signing, coordinator)).result is result


async def test_check_that_fails_is_a_row_of_its_name() -> None:
    row = await found(checks.check_deployment, FakeCoordinator({"GET /evm/chain": [failing(500, "internal_error")]}))
    assert (row.what, row.result) == ("checked", CheckResult.WRONG)


@pytest.mark.parametrize(
    ("told", "remedy"),
    [(Dropped(), "check that the coordinator runs"), (Answer(200, b"<html>"), "another service answers")],
    ids=["nobody", "a stranger"],
)
async def test_wrong_server_at_the_address_is_recognised(told: Told, remedy: str) -> None:
    row = await checks.check_reachable(FakeCoordinator({"GET /readyz": [told]}).client())
    assert row is not None
    assert (row.what, row.result) == ("coordinator", CheckResult.WRONG)
    assert remedy in row.remedy
    assert await checks.check_reachable(FakeCoordinator({"GET /readyz": [Answer(200, READY)]}).client()) is None
