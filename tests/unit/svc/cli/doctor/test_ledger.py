from typing import Any

import httpx
import pytest

from common.keccak import keccak256
from common.scalars import hex_of
from svc.cli.doctor.finding import Finding, Health
from svc.cli.doctor.gateways import gateways
from svc.cli.doctor.ledger import ledger
from svc.cli.doctor.node import Node
from svc.client import Client
from svc.core.deployment import Market
from svc.records import Contracts, Deployment, TokenName
from tests.fakes.streamed import StreamedTransport

pytestmark = pytest.mark.anyio

_WALLET = b"\x55" * 20
_JOBS, _PROVIDERS, _ASKS, _TOKEN = ("0x" + digit * 40 for digit in "1234")
_DEPLOYMENT = Deployment(
    chain_id=31337,
    contracts=Contracts(job_registry=_JOBS, provider_registry=_PROVIDERS, ask_registry=_ASKS, paytoken=_TOKEN),
    decimals=6,
    token_domain=TokenName(name="Dev Dollar", version="1"),
    gas_price=1,
    head_block=1,
    block_time_ms=500,
    fee_bps=250,
)
_SEPARATOR, _BALANCE = (hex_of(keccak256(name)[:4]) for name in (b"DOMAIN_SEPARATOR()", b"balanceOf(address)"))


class _Chain:
    """A node that is well, except for what a test changes."""

    def __init__(self, now: int, **changed: Any) -> None:
        domains = Market.of(_DEPLOYMENT).domains
        signed = (domains.jobs, domains.providers, domains.asks, domains.token)
        self.separators = dict(
            zip((_JOBS, _PROVIDERS, _ASKS, _TOKEN), (each.separator for each in signed), strict=True)
        )
        self.answers = {"eth_chainId": hex(31337), "eth_getBlockByNumber": {"timestamp": hex(now)}, "eth_getCode": "0x"}
        self.answers |= changed

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = httpx.Response(200, content=request.read()).json()
        if body["method"] == "eth_call":
            call = body["params"][0]
            word = self.separators[call["to"]] if call["data"] == _SEPARATOR else (5_000_000).to_bytes(32, "big")
            assert call["data"][:10] in (_SEPARATOR, _BALANCE)
            return httpx.Response(200, json={"result": hex_of(word)})
        return httpx.Response(200, json={"result": self.answers[body["method"]]})


async def _found(chain: _Chain, monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    async def said(_: Client) -> Deployment:
        return _DEPLOYMENT

    monkeypatch.setattr(Client, "chain", said)
    monkeypatch.setattr("svc.cli.doctor.ledger.time.time", lambda: 1_000_000.0)
    async with httpx.AsyncClient(transport=StreamedTransport(chain)) as http, Client(environment={}) as client:
        return {each.check: each for each in await ledger(client, Node("http://node", http), _WALLET)}


async def test_chain_that_is_as_the_coordinator_says_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await _found(_Chain(999_990), monkeypatch)
    assert {name: each.health for name, each in found.items()} == dict.fromkeys(
        ("chain", "domains", "balance"), Health.WELL
    )
    assert "5 Dev Dollar" in found["balance"].seen


async def test_node_of_another_chain_is_wrong_and_asked_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await _found(_Chain(999_990, eth_chainId="0x1"), monkeypatch)
    assert found.keys() == {"chain"}
    assert found["chain"].health is Health.WRONG


async def test_contract_that_signs_in_another_domain_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = _Chain(999_990)
    chain.separators[_ASKS] = bytes(32)
    found = await _found(chain, monkeypatch)
    assert found["domains"].health is Health.WRONG
    assert "SVC Asks" in found["domains"].seen


async def test_wallet_with_code_is_told_that_its_payments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await _found(_Chain(999_990, eth_getCode="0xef0100"), monkeypatch)
    assert found["payer"].health is Health.WRONG


@pytest.mark.parametrize("at", [999_000, 1_001_000])
async def test_head_that_is_far_from_this_clock_is_doubtful(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await _found(_Chain(at), monkeypatch))["chain"].health is Health.DOUBTFUL


@pytest.mark.parametrize(
    ("newest", "status", "health"),
    [
        (("bafytask",), 200, Health.WELL),
        (("bafytask",), 404, Health.WRONG),
        ((), 404, Health.UNCHECKED),
    ],
)
async def test_gateway_is_asked_for_what_is_stored(
    newest: tuple[str, ...], status: int, health: Health, monkeypatch: pytest.MonkeyPatch
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
        (finding,) = await gateways(client, http)
    assert finding.health is health
    assert asked == ["http://gateway/ipfs/bafytask" if newest else "http://gateway"]
