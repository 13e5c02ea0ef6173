import time
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from common.box import SecretKey
from common.checks import CheckResult, CheckRow
from common.escrow_evidence import report_data
from common.quotes import FeeTerms
from svc.cli.health import coordinator as checks
from svc.cli.health.chain import check_chain
from svc.cli.health.gateways import check_gateways
from svc.client import Client
from svc.core.clock import ServerClock
from tests.support.fakes.streamed import StreamedTransport
from tests.unit.svc.fake_chain import NODE, OTHER_NODE, TOLD, FakeNode
from tests.unit.svc.fake_coordinator import MODEL, Answer, Dropped, FakeCoordinator, Told, failing, provider, quoting

_WALLET = b"\x55" * 20


async def _found(monkeypatch: pytest.MonkeyPatch, *nodes: FakeNode) -> dict[str, CheckRow]:
    monkeypatch.setattr("svc.cli.health.chain.time.time", lambda: 1_000_010.0)
    coordinator = FakeCoordinator(
        {
            "GET /v1/models": [Answer(200, {"data": [MODEL]})],
            "GET /evm/providers": [Answer(200, {"providers": [provider()]})],
        }
    )
    urls = (NODE, OTHER_NODE)[: len(nodes)]
    for url, node in zip(urls, nodes, strict=True):
        coordinator.tell(f"POST {url}/", node)
    client = coordinator.client(rpc_url=urls)
    return {each.what: each for each in await check_chain(client, client.market_verifier.chain, _WALLET)}


async def test_chain_that_is_as_the_coordinator_says_vouches_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await _found(monkeypatch, FakeNode(), FakeNode())
    checks = ("chain", "domains", "fees", "models", "providers", "balance")
    assert {name: each.result for name, each in found.items()} == dict.fromkeys(checks, CheckResult.RIGHT)
    assert "2 nodes agree" in found["chain"].detail
    assert "5 Dev Dollar" in found["balance"].detail


async def test_without_a_node_unchecked_facts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await _found(monkeypatch)
    assert {name: each.result for name, each in found.items()} == {"chain": CheckResult.UNKNOWN}
    assert "unverified" in found["chain"].detail


async def test_node_of_another_chain_is_wrong_and_asked_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await _found(monkeypatch, FakeNode(chain_id=1))
    assert {name: each.result for name, each in found.items()} == {"chain": CheckResult.WRONG}


@pytest.mark.parametrize(
    ("changed", "check", "seen"),
    [
        ({"separators": {TOLD.job_registry: bytes(32)}, "has_code": TOLD.job_registry}, "domains", "SVC Jobs"),
        ({"token": b"\x66" * 20}, "domains", "payment token"),
        ({"fees": FeeTerms(1, 2)}, "fees", "250 basis points, the chain 1"),
        ({"model": "demo/other"}, "models", "demo/text"),
        ({"enabled": False}, "models", "demo/text"),
        ({"provider": {"boxKey": b"\x66" * 32, "listed": True}}, "providers", "7"),
        ({"balance": 0}, "balance", "no Dev Dollar"),
        ({"has_code": _WALLET}, "payer", "has code"),
    ],
)
async def test_contradiction_by_the_chain_is_wrong(
    changed: dict[str, Any], check: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (await _found(monkeypatch, FakeNode(**changed)))[check]
    assert found.result is CheckResult.WRONG
    assert seen in found.detail


async def test_model_names_are_unchecked_without_old_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await _found(monkeypatch, FakeNode(head=10**7, refused_logs=500))
    assert found["models"].result is CheckResult.UNKNOWN


async def test_disagreeing_nodes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await _found(monkeypatch, FakeNode(), FakeNode(balance=4))
    assert found["chain"].result is CheckResult.WRONG
    assert "disagree" in found["chain"].detail


@pytest.mark.parametrize("at", [999_000, 1_001_000])
async def test_head_that_is_far_from_this_clock_is_doubtful(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await _found(monkeypatch, FakeNode(block_time=at)))["chain"].result is CheckResult.UNKNOWN


@pytest.mark.parametrize(
    ("newest_cids", "status", "result"),
    [(("bafytask",), 200, CheckResult.RIGHT), (("bafytask",), 404, CheckResult.WRONG), ((), 404, CheckResult.UNKNOWN)],
)
async def test_gateway_is_tested_with_stored_content(
    newest_cids: tuple[str, ...], status: int, result: CheckResult | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def book(*_: Any, **__: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(task_cid=cid) for cid in newest_cids]

    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(status)

    monkeypatch.setattr("svc.jobs.Jobs.book", book)
    async with (
        httpx.AsyncClient(transport=StreamedTransport(answer)) as http,
        Client(gateways="http://gateway", environment={}) as client,
    ):
        (row,) = await check_gateways(client, http)
    assert row.result is result
    assert asked == ["http://gateway/ipfs/bafytask" if newest_cids else "http://gateway"]


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
