"""What doctor finds on the coordinator's side, against a coordinator that answers as told."""

import time
from email.utils import formatdate
from typing import Any

import pytest

from common.box import SecretKey
from common.escrow_evidence import report_data
from svc.cli.health import coordinator as checks
from svc.cli.health.findings import Finding, Health
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

pytestmark = pytest.mark.anyio

READY = {"ready": True, "reason": "ready", "cursor": "5", "head_block": "5", "lag": "0"}
KEY = SecretKey(b"\x09" * 32).public
ASK = {"provider_id": "7", "model_id": "1", "sla": "3600", "rate_in": "1", "rate_out": "1"}


async def found(check: checks.Check, coordinator: FakeCoordinator, **options: Any) -> Finding:
    (finding,) = await checks.run_checks(coordinator.client(**options), {"checked": check})
    return finding


@pytest.mark.parametrize(
    ("ahead", "health", "said"),
    [
        (0, Health.OK, "agrees"),
        (300, Health.WARNING, "300 s ahead of this one; svc corrects for it"),
        (-700, Health.WARNING, "700 s behind this one; svc corrects for it"),
        (7200, Health.WRONG, "7200 s ahead of this one"),
        (-7200, Health.WRONG, "7200 s behind this one"),
    ],
)
async def test_clock_is_held_against_the_coordinators(
    ahead: int, health: Health, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = float(int(time.time()))
    monkeypatch.setattr("svc.client.ServerClock", lambda: ServerClock(local=lambda: now))
    date = formatdate(now + ahead, usegmt=True)
    finding = await found(checks.clock, FakeCoordinator({"GET /readyz": [Answer(200, READY, {"date": date})]}))
    assert finding.health is health
    assert said in finding.seen
    assert (finding.remedy is None) == (health is Health.OK)


@pytest.mark.parametrize(
    ("reason", "lag", "said"),
    [
        ("trailing", "40", "is not ready: trailing; blocks behind the chain: 40"),
        ("cold_start", None, "is not ready: cold_start"),
        ("chain_unreachable", None, "is not ready: chain_unreachable"),
    ],
)
async def test_index_that_lags_is_told_with_its_reason(reason: str, lag: str | None, said: str) -> None:
    behind = {**READY, "ready": False, "reason": reason, "lag": lag}
    finding = await found(
        checks.coordinator, FakeCoordinator({"GET /readyz": [Answer(503, behind, {"x-request-id": "r"})]})
    )
    assert finding.health is Health.WARNING
    assert finding.seen.endswith(said)
    assert "wait" in str(finding.remedy)


def escrow(key: str = KEY.raw.hex(), **changed: Any) -> Answer:
    evidence = {"type": "static-coordinator-v1", "report_data": report_data(KEY).hex(), "debug": False, "release": 1}
    return Answer(200, {"escrow_public_key": key, "evidence": evidence | changed, "issued_at": 1})


@pytest.mark.parametrize(
    ("answer", "pinned", "health", "remedy"),
    [
        (escrow(), (KEY.raw.hex(),), Health.OK, None),
        (escrow(), ("00" * 32,), Health.WRONG, "if the operator announced the change"),
        (escrow(type="mock-coordinator-v1"), (), Health.WRONG, "--allow-mock-escrow"),
        (escrow(debug=True), (), Health.WRONG, "make no open orders here"),
        (escrow(report_data="11" * 32), (), Health.WRONG, "make no open orders here"),
        (failing(403, "invalid_request_error", "escrow_unavailable"), (), Health.WARNING, "name a provider"),
        (failing(400, "invalid_request_error"), (), Health.WRONG, "see the message"),
    ],
    ids=["well", "not pinned", "mock", "debug", "of another key", "none", "trouble"],
)
async def test_escrow_that_may_not_be_sealed_to_is_told_with_what_to_do(
    answer: Answer, pinned: tuple[str, ...], health: Health, remedy: str | None
) -> None:
    finding = await found(checks.escrow, FakeCoordinator({"GET /key": [answer]}), escrow_keys=pinned)
    assert finding.health is health
    assert remedy is None if finding.remedy is None else str(remedy) in finding.remedy


@pytest.mark.parametrize(("asks", "health"), [([ASK], Health.OK), ([], Health.WARNING)])
async def test_market_in_which_nobody_asks_a_price_is_doubtful(asks: list[object], health: Health) -> None:
    coordinator = FakeCoordinator({"GET /v1/models": [Answer(200, {"data": [MODEL]})]})
    coordinator.tell("GET /evm/asks", Answer(200, {"asks": asks}))
    assert (await found(checks.market, coordinator)).health is health


@pytest.mark.parametrize(("quoted", "health"), [(quoting(), Health.OK), (quoting(to="0x" + "66" * 20), Health.WRONG)])
async def test_order_that_is_quoted_otherwise_than_it_was_signed_is_wrong(quoted: Told, health: Health) -> None:
    coordinator = FakeCoordinator({"GET /v1/models": [Answer(200, {"data": [MODEL]})], "POST /v1/jobs": [quoted]})
    coordinator.tell("GET /evm/providers", Answer(200, {"providers": [provider()]}))
    assert (await found(checks.signing, coordinator)).health is health


async def test_check_that_fails_is_a_finding_of_its_name() -> None:
    finding = await found(checks.deployment, FakeCoordinator({"GET /evm/chain": [failing(500, "internal_error")]}))
    assert (finding.check, finding.health) == ("checked", Health.WRONG)


@pytest.mark.parametrize(
    ("told", "remedy"),
    [(Dropped(), "check that the coordinator runs"), (Answer(200, b"<html>"), "another service answers")],
    ids=["nobody", "a stranger"],
)
async def test_what_answers_at_the_address_is_told_apart(told: Told, remedy: str) -> None:
    finding = await checks.check_reachable(FakeCoordinator({"GET /readyz": [told]}).client())
    assert finding is not None
    assert (finding.check, finding.health) == ("coordinator", Health.WRONG)
    assert remedy in str(finding.remedy)
    assert await checks.check_reachable(FakeCoordinator({"GET /readyz": [Answer(200, READY)]}).client()) is None
