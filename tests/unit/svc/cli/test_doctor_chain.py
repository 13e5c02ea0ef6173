from typing import Any

import httpx
import pytest

from common.checks import CheckResult, CheckRow
from common.quotes import FeeTerms
from svc.cli.health.chain import check_chain
from svc.cli.health.gateways import check_gateways
from svc.client import Client
from tests.support.fakes.streamed import StreamedTransport
from tests.unit.svc.fake_chain import NODE, OTHER_NODE, TOLD, FakeNode
from tests.unit.svc.fake_coordinator import MODEL, Answer, FakeCoordinator, provider

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
    ("newest", "status", "result"),
    [
        (("bafytask",), 200, CheckResult.RIGHT),
        (("bafytask",), 404, CheckResult.WRONG),
        ((), 404, CheckResult.UNKNOWN),
    ],
)
async def test_gateway_is_tested_with_stored_content(
    newest: tuple[str, ...], status: int, result: CheckResult | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class _Row:
        task_cid = "bafytask"

    async def book(*_: Any, **__: Any) -> list[_Row]:
        return [_Row() for _ in newest]

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
    assert asked == ["http://gateway/ipfs/bafytask" if newest else "http://gateway"]
