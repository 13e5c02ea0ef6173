"""`svcd check`: each row passes on a correct set-up, and fails on the fault that it checks for."""

import json
import os
import socket
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from common import abi
from common.artifacts import load_artifact, selector
from common.box import SecretKey
from common.checks import CheckResult, CheckRow, check_summary, wrong_names
from common.domains import Domains
from common.scalars import hex_of
from svcd.backends.discount import AskRates
from svcd.base.clock import Clock
from svcd.journal.journal import open_journal
from svcd.operator.check import run_checks
from svcd.operator.market_comparison import check_modality
from tests.support.fakes.backend_settings import read_backend, read_probe
from tests.support.fakes.market import BOOK, START, Market
from tests.support.fakes.market_answers import Script, answer, error, instead, unreached
from tests.support.fakes.model_server import Asked, Reply, running_model_server
from tests.support.fakes.streamed import StreamedTransport
from tests.unit.svcd.stages.running import config_for, model_for

TEXT = model_for("demo/text", {"text"})
PROVIDERS = load_artifact("ProviderRegistry")
ABSENT = "http://127.0.0.1:1"  # nothing listens on this port


async def examined(market: Market, state: Path, **configured: Any) -> list[CheckRow]:
    config = config_for(market, state, **{"models": (TEXT,), "addresses": BOOK, **configured})
    market.always.setdefault("readyz", dated(0))
    return await run_checks(config, market.transport, Clock(lambda: START))


def dated(behind: float) -> Script:
    """Answer with a `date` header that is behind by this many seconds."""

    async def script(perform: Callable[[], httpx.Response]) -> httpx.Response:
        response = perform()
        response.headers["date"] = formatdate(START - behind, usegmt=True)
        return response

    return script


def backed(**backend: object) -> dict[str, Any]:
    return {"models": (attrs.evolve(TEXT, backend=read_backend(backend)),)}


@attrs.frozen
class Case:
    """A change, and the row that reports it with these words."""

    row: str
    words: str
    configured: dict[str, Any] = attrs.field(factory=dict)
    market: dict[str, Any] = attrs.field(factory=dict)


CASES = {
    "coordinator is away": Case("coordinator", "ConnectError", market={"always": {"readyz": unreached()}}),
    "coordinator is not ready": Case(
        "coordinator", "trailing", market={"always": {"readyz": instead(answer(503, {"reason": "trailing"}))}}
    ),
    "clock is off by more than is corrected": Case("clock", "1000 s ahead", market={"always": {"readyz": dated(1000)}}),
    "window is none that the market takes": Case(
        "model demo/text", "has no window of 600 s, only 60, 3600", market={"windows": [60, 3600]}
    ),
    "another daemon polls": Case(
        "other daemons", "give this daemon another wallet", market={"rival": True, "asks": {(1, 600): (100, 200)}}
    ),
    "it is no coordinator": Case(
        "deployment",
        "does not have the expected shape",
        market={"always": {"chain": instead(answer(200, {"hello": 1}))}},
    ),
    "another deployment": Case(
        "domains", "chain id: expected 1, reported 31337", configured={"addresses": attrs.evolve(BOOK, chain_id=1)}
    ),
    "wallet is no provider's": Case(
        "session", "is not a registered provider", market={"always": {"session": instead(error(403, "not_registered"))}}
    ),
    "not listed": Case("listed", "ask the market's admin", market={"listed": False}),
    "another box key is published": Case(
        "box key", "svcd identity", configured={"box": SecretKey(b"\x77" * 32)}, market={"box": SecretKey(b"\x33" * 32)}
    ),
    "model is not in the catalogue": Case(
        "model demo/other", "not in the coordinator's catalogue", {"models": (model_for("demo/other", {"text"}),)}
    ),
    "text model is served as embeddings": Case(
        "kind of demo/text",
        "the market sells text (/v1/responses), but serves has embeddings: correct serves",
        {"models": (model_for("demo/text", {"embeddings"}),)},
    ),
    "prices are in the wrong unit": Case(
        "prices of demo/text",
        "9e+06 x in the window of 600 s: rates are base units per 10^6 units",
        {"models": (model_for("demo/text", {"text"}, asks={600: AskRates(9_000_000, 18_000_000)}),)},
        market={"others_asks": {(1, 600): (1, 2)}},
    ),
    "prices are far below the others'": Case(
        "prices of demo/text", "0.0001 x in the window of 600 s", market={"others_asks": {(1, 3600): (1_000_000, 200)}}
    ),
    "registry is not to be read": Case(
        "registry", "answered 500", market={"always": {"providers": instead(error(500, None, "internal_error"))}}
    ),
    "gateway is away": Case("gateway", "ConnectError", market={"always": {"fetch": unreached()}}),
    "gateway is broken": Case("gateway", "answered 502", market={"always": {"fetch": instead(answer(502))}}),
    "model server is away": Case(
        "backend of demo/text", f"{ABSENT} is down", backed(kind="openai", api="chat", base_url=ABSENT)
    ),
    "program is not there": Case(
        "backend of demo/text", "/none/such is down", backed(kind="exec", command=["/none/such"])
    ),
    "load cannot be read": Case(
        "load of demo/text",
        f"no load could be read from {ABSENT}",
        {"models": (attrs.evolve(TEXT, load=read_probe({"kind": "prometheus", "url": ABSENT})),)},
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
async def test_fault_has_its_row(case: Case, tmp_path: Path) -> None:
    market = Market(lambda: START)
    for name, value in case.market.items():
        setattr(market, name, value)
    findings = await examined(market, tmp_path, **case.configured)
    wrong = {row.what: row.text for row in findings if row.result is CheckResult.WRONG}
    assert list(wrong) == [case.row]
    assert case.words in wrong[case.row]
    assert check_summary(findings).startswith(f"1 wrong: {case.row}")


@attrs.frozen
class Ledger:
    """A node with the market's contracts and its provider, except where a test changes them."""

    market: Market
    chain_id: int = BOOK.chain_id
    provider_id: int = 7
    listed: bool = True
    box_key: bytes = SecretKey(b"\x33" * 32).public.raw
    no_code: bytes = b""
    separator: bytes | None = None
    status: int = 200

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.read())
        told = hex_of(self._call(*body["params"])) if body["method"] != "eth_chainId" else hex(self.chain_id)
        return httpx.Response(self.status, json={"jsonrpc": "2.0", "id": 1, "result": told} if self._up else None)

    @property
    def _up(self) -> bool:
        return self.status == 200

    def _call(self, asked: Any, _: str) -> bytes:
        if isinstance(asked, str):  # eth_getCode
            return b"" if asked == hex_of(self.no_code) else b"\x60"
        to, data = (bytes.fromhex(asked[name][2:]) for name in ("to", "data"))
        domains = Domains.of(BOOK)
        signed = (domains.jobs, domains.providers, domains.asks, domains.token)
        known: dict[bytes, bytes] = {
            abi.selector("DOMAIN_SEPARATOR()"): self.separator
            or next(each.separator for each in signed if each.domain.verifying_contract == to),
            selector(PROVIDERS, "providerIdOf"): bytes(abi.uint(self.provider_id)),
            selector(PROVIDERS, "provider"): self._provider(),
        }
        if data[:4] == selector(PROVIDERS, "providerIdOf"):
            assert data[4:] == bytes(abi.address(self.market.provider.address))
        return known[data[:4]]

    def _provider(self) -> bytes:
        (entry,) = (each for each in PROVIDERS.abi if each["type"] == "function" and each["name"] == "provider")
        has = {"boxKey": abi.bytes32(self.box_key), "listed": abi.boolean(self.listed)}
        fields = [each["name"] for each in entry["outputs"][0]["components"]]
        return b"".join(has.get(name, abi.uint(0)) for name in fields)


async def seen_by(node: Ledger, state: Path, **configured: Any) -> list[CheckRow]:
    """Return the rows that the provider's own node adds."""
    market = node.market
    market.always.setdefault("readyz", dated(0))
    config = config_for(market, state, models=(TEXT,), addresses=BOOK, rpc_url="http://node/secret", **configured)
    ways = {"node": StreamedTransport(node.handle)}

    class Both(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return await ways.get(request.url.host, market.transport).handle_async_request(request)

    findings = await run_checks(config, Both(), Clock(lambda: START))
    assert not any("secret" in row.text for row in findings)  # a node's URL often contains an API key
    return [each for each in findings if each.what in {"node", "contracts", "on the chain", "key on the chain"}]


async def test_node_of_ones_own_vouches_for_contracts_listing_and_key(tmp_path: Path) -> None:
    rows = await seen_by(Ledger(Market(lambda: START)), tmp_path)
    assert [(row.what, row.result) for row in rows] == [
        *((what, CheckResult.RIGHT) for what in ("node", "contracts", "on the chain", "key on the chain"))
    ]
    assert "provider 7 is listed" in {row.detail for row in rows}


@pytest.mark.parametrize(
    ("changed", "row", "words"),
    [
        ({"chain_id": 1}, "node", "follows chain 1: set rpc_url to a node of chain 31337"),
        (
            {"status": 503},
            "node",
            "answered 503; claimed jobs cannot be verified, so svcd would fail them: correct rpc_url",
        ),
        ({"no_code": BOOK.ask_registry}, "contracts", f"SVC Asks at {hex_of(BOOK.ask_registry)} has no code"),
        ({"separator": bytes(32)}, "contracts", "has another signing domain: get the market's address book"),
        ({"provider_id": 0}, "on the chain", "is not registered as a provider: register it"),
        ({"listed": False}, "on the chain", "not listed: ask the market's admin"),
        ({"box_key": b"\x05" * 32}, "key on the chain", f"has 0x{'05' * 32}, but the configured key is"),
        ({"box_key": bytes(32)}, "key on the chain", "has none, but the configured key is"),
    ],
)
async def test_differing_chain_state_fails_with_a_remedy(
    changed: dict[str, Any], row: str, words: str, tmp_path: Path
) -> None:
    rows = await seen_by(Ledger(Market(lambda: START), **changed), tmp_path)
    wrong = {each.what: each.text for each in rows if each.result is CheckResult.WRONG}
    assert list(wrong) == [row]
    assert words in wrong[row]


async def test_check_without_a_node_names_unverified_facts(tmp_path: Path) -> None:
    (row,) = [each for each in await examined(Market(lambda: START), tmp_path) if each.what == "node"]
    assert row.result is CheckResult.UNKNOWN
    assert "reported by the coordinator, and not verified on the chain" in row.detail


async def test_correct_setup_passes_every_row(tmp_path: Path) -> None:
    market = Market(lambda: START, others_asks={(1, 600): (50, 1000)}, largest_bundle=500, announces_tabs=True)
    findings = await examined(market, tmp_path / "state")
    rows = {row.what: row.result for row in findings if row.what != "node"}
    assert rows == dict.fromkeys(
        [
            "configuration",
            "state directory",
            "metrics",
            "coordinator",
            "clock",
            "domains",
            "session",
            "listed",
            "capacity",
            "box key",
            "bundles",
            "tabs",
            "other daemons",
            "model demo/text",
            "kind of demo/text",
            "prices of demo/text",
            "gateway",
            "backend of demo/text",
            "load of demo/text",
        ],
        CheckResult.RIGHT,
    )
    assert check_summary(findings) == "nothing is wrong; 1 unknown"
    assert os.listdir(tmp_path) == []


async def test_missing_announcement_of_bundles_is_a_fact(tmp_path: Path) -> None:
    (row,) = [row for row in await examined(Market(lambda: START), tmp_path) if row.what == "bundles"]
    assert (row.result, row.remedy) == (None, "announce them: svcd identity")


async def test_facts_and_unknown_rows_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    market = Market(lambda: START, capacity=1)
    findings = await examined(market, tmp_path, box=None, addresses=None)
    assert {row.what for row in findings if row.result is None} == {"capacity", "box key"}
    unknown = {row.what for row in findings if row.result is CheckResult.UNKNOWN}
    assert unknown == {"domains", "prices of demo/text", "node"}


async def test_corrected_clock_is_reported(tmp_path: Path) -> None:
    (row,) = [
        each
        for each in await examined(Market(lambda: START, always={"readyz": dated(300)}), tmp_path)
        if each.what == "clock"
    ]
    assert row.result is None
    assert "+299.5 s against the coordinator's, which svcd corrects" in row.detail


async def test_own_asks_and_unusual_prices_are_not_wrong(tmp_path: Path) -> None:
    market = Market(lambda: START, asks={(1, 600): (1, 1)}, others_asks={(1, 600): (10, 200), (3, 600): (1, 1)})
    findings = {finding.what: finding for finding in await examined(market, tmp_path)}
    prices = findings["prices of demo/text"]
    assert prices.result is None
    assert "10 x in the window of 600 s" in prices.detail


@pytest.mark.parametrize(
    ("api", "endpoint", "is_right"),
    [
        ("chat", "/v1/responses", True),
        ("embeddings", "/v1/responses", False),
        ("chat", "/v1/embeddings", False),
        ("embeddings", "/v1/embeddings", True),
        ("images", "/v1/images/generations", True),
    ],
)
async def test_route_of_the_server_is_compared_with_the_models(api: str, endpoint: str, is_right: bool) -> None:
    backend = read_backend({"kind": "openai", "api": api, "base_url": ABSENT})
    found = check_modality(model_for("m", {"text", "embeddings", "image"}, backend=backend), endpoint)
    assert found is not None
    assert found.result is (CheckResult.RIGHT if is_right else CheckResult.WRONG)


async def test_disallowed_model_is_reported(tmp_path: Path) -> None:
    async def none_allowed(perform: Callable[[], httpx.Response]) -> httpx.Response:
        return answer(200, {**perform().json(), "allow_all_models": False, "allowed_models": ["3"]})

    findings = await examined(Market(lambda: START, always={"providers": none_allowed}), tmp_path)
    wrong = {row.what: row.text for row in findings if row.result is CheckResult.WRONG}
    assert wrong == {
        "model demo/text": "the registry does not allow this provider model id 1 yet: ask the market's admin"
    }


async def test_name_that_the_model_server_does_not_know_is_wrong(tmp_path: Path) -> None:
    def served(asked: Asked) -> Reply:
        return Reply.of({"data": [{"id": "llama", "owned_by": "vllm"}]})

    async with running_model_server(served) as server:
        table = {"kind": "openai", "api": "chat", "base_url": server.url, "models": {"demo/text": "lama"}}
        findings = await examined(Market(lambda: START), tmp_path, **backed(**table))
    wrong = {row.what: row.text for row in findings if row.result is CheckResult.WRONG}
    assert list(wrong) == ["backend of demo/text"]
    assert "does not list 'lama'; it lists llama: set models under [model.backend]" in wrong["backend of demo/text"]


async def test_daemon_that_runs_here_is_not_taken_for_another(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "state"):
        findings = await examined(Market(lambda: START, rival=True, asks={(1, 600): (1, 1)}), tmp_path / "state")
    assert [each.result for each in findings if each.what == "other daemons"] == [CheckResult.UNKNOWN]


async def test_metrics_port_that_another_program_has_is_wrong(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        findings = await examined(Market(lambda: START), tmp_path, metrics_port=port)
    wrong = {row.what: row.text for row in findings if row.result is CheckResult.WRONG}
    assert wrong == {"metrics": f"127.0.0.1:{port}: Address already in use: set another port under [metrics]"}


async def test_metrics_port_of_the_daemon_that_runs_here_is_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as own:
        async with open_journal(tmp_path / "state"):
            findings = await examined(Market(lambda: START), tmp_path / "state", metrics_port=own.getsockname()[1])
    assert [each.result for each in findings if each.what == "metrics"] == [None]


async def test_impossible_state_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    findings = await examined(Market(lambda: START), tmp_path / "file" / "state")
    assert wrong_names(findings) == ["state directory"]


async def test_slow_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = backed(kind="echo")
    monkeypatch.setattr("svcd.backends.echo.EchoBackend.is_up", _never)
    findings = await examined(Market(lambda: START), tmp_path, **slow)
    (late,) = [row for row in findings if row.result is CheckResult.WRONG]
    assert (late.what, late.detail) == ("backend of demo/text", "no answer in 15 s")


async def _never(_: object) -> bool:
    await trio.sleep_forever()
    raise AssertionError
