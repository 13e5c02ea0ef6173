"""`svcd register`: simulated and priced before it is sent, sent once, and followed by instructions for the admin."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from common import abi
from common.artifacts import load_artifact, selector
from common.daemon.process import Fatal
from common.domains import Domains
from common.scalars import hex_of
from svcd.config import DaemonConfig
from svcd.operator.identity import MAX_EVIDENCE_BYTES, publish_identity
from svcd.operator.register import RegisterOptions, register
from tests.support.fakes.market import BOOK, START, Market
from tests.support.fakes.market_answers import Script, answer, error, instead, unreached
from tests.support.fakes.streamed import StreamedTransport
from tests.unit.svcd.stages.running import config_for, model_for

PROVIDERS = load_artifact("ProviderRegistry")
GWEI = 10**9


@attrs.define
class Node:
    """A node with an empty registry. `raw`: transactions that it received."""

    market: Market
    provider_id: int = 0
    admitted: dict[str, int] = attrs.field(factory=lambda: {"listed": 0, "ceiling": 0, "allowed": 0})
    chain_id: int = BOOK.chain_id
    balance: int = 10**18
    pending: int = 3
    refuses: bool = False  # answers with an error but keeps the transaction
    reverts: bool = False
    raw: list[str] = attrs.field(factory=list)

    async def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        try:
            told = getattr(self, "_" + re.sub(r"([A-Z])", r"_\1", body["method"]).lower())(*body["params"])
        except LookupError as refused:
            return httpx.Response(
                200, json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": str(refused)}}
            )
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": told})

    def _eth_chain_id(self) -> str:
        return hex(self.chain_id)

    def _eth_get_code(self, *_: str) -> str:
        return "0x60"

    def _eth_get_block_by_number(self, *_: object) -> dict[str, str]:
        return {"baseFeePerGas": hex(10 * GWEI)}

    def _eth_max_priority_fee_per_gas(self) -> str:
        return hex(GWEI)

    def _eth_get_transaction_count(self, address: str, at: str) -> str:
        return hex(3 if at == "latest" else self.pending)

    def _eth_estimate_gas(self, call: dict[str, str]) -> str:
        assert call["data"] == hex_of(selector(PROVIDERS, "register"))
        return hex(100_000)

    def _eth_get_balance(self, *_: str) -> str:
        return hex(self.balance)

    def _eth_send_raw_transaction(self, raw: str) -> str:
        self.raw.append(raw)
        self.provider_id = 0 if self.reverts else 9
        if self.refuses:
            raise LookupError("already known")
        return "0x"

    def _eth_get_transaction_receipt(self, _: str) -> dict[str, str] | None:
        return {"status": hex(not self.reverts)} if self.raw else None

    def _eth_call(self, asked: dict[str, str], _: str) -> str:
        to, data = (bytes.fromhex(asked[name][2:]) for name in ("to", "data"))
        domains = Domains.of(BOOK)
        signed = (domains.jobs, domains.providers, domains.asks, domains.token)
        views: dict[bytes, Callable[[], bytes]] = {
            abi.selector("DOMAIN_SEPARATOR()"): lambda: next(
                each.separator for each in signed if each.domain.verifying_contract == to
            ),
            selector(PROVIDERS, "providerIdOf"): lambda: bytes(abi.uint(self.provider_id)),
            selector(PROVIDERS, "modelAllowed"): lambda: bytes(abi.uint(self.admitted["allowed"])),
            selector(PROVIDERS, "provider"): self._provider,
        }
        return hex_of(views[data[:4]]())

    def _provider(self) -> bytes:
        (entry,) = (each for each in PROVIDERS.abi if each["type"] == "function" and each["name"] == "provider")
        has = {"boxKey": abi.bytes32(self.market.box.public.raw), "reputation": abi.uint(500)}
        has |= {name: abi.uint(value) for name, value in self.admitted.items()}
        return b"".join(has.get(field["name"], abi.uint(0)) for field in entry["outputs"][0]["components"])


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """Add the node at http://node to the market."""
    node = Node(Market(lambda: START))

    async def route(request: httpx.Request) -> httpx.Response:
        return await (node.handle if request.url.host == "node" else node.market.handle)(request)

    real = httpx.AsyncClient
    monkeypatch.setattr(
        httpx, "AsyncClient", lambda **given: real(transport=StreamedTransport(route), base_url=given["base_url"])
    )
    return node


async def ran(node: Node, tmp_path: Path, *, yes: bool = True, **options: Any) -> list[str]:
    """Run `svcd register` and return its output."""
    said: list[str] = []
    config = config_for(node.market, tmp_path, addresses=BOOK, models=(model_for("demo/text", {"text"}),))
    chosen = {"rpc_url": "http://node", "dry_run": False, "confirm": lambda: yes, **options}
    await register(config, RegisterOptions(**chosen), said.append)
    return said


async def test_registration_is_priced_sent_and_explained(node: Node, tmp_path: Path) -> None:
    said = "\n".join(await ran(node, tmp_path))
    address = hex_of(node.market.provider.address)
    assert "gas 120000, at most 0.002520 of the native coin; the wallet has 1.000000" in said
    assert f"{address} is provider 9" in said
    assert "setListed: coordinatord market admin list-provider 9" in said
    assert "setCeiling to 8, for 4 slots at reputation 500: coordinatord market admin ceiling 9 8" in said
    assert "setModelAllowed for demo/text, or setAllowAllModels: coordinatord market admin allow-model 9 1 yes" in said
    assert len(node.raw) == 1


@pytest.mark.parametrize("how", [{"dry_run": True}, {"yes": False}])
async def test_nothing_is_sent_that_was_not_wanted(how: dict[str, Any], node: Node, tmp_path: Path) -> None:
    said = await ran(node, tmp_path, **how)
    assert said[-1] == "the registration was simulated, but not sent (send it with --yes)"
    assert node.raw == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"balance": 0}, "send 0.002520 or more of the native coin to 0x19e7e376"),
        ({"pending": 4}, "is not mined yet: wait until it is mined, then run this command again"),
        ({"chain_id": 1}, "--rpc-url is a node of chain 1, but the market is on chain 31337"),
    ],
)
async def test_obstacle_is_reported_with_a_remedy(
    changed: dict[str, int], words: str, node: Node, tmp_path: Path
) -> None:
    for name, value in changed.items():
        setattr(node, name, value)
    with pytest.raises(Fatal, match=words):
        await ran(node, tmp_path)
    assert node.raw == []


async def test_without_a_node_it_says_which_setting_names_one(node: Node, tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="no node given: set --rpc-url"):
        await ran(node, tmp_path, rpc_url=None)


async def test_wallet_that_is_registered_sends_nothing(node: Node, tmp_path: Path) -> None:
    node.provider_id = 9
    assert "is provider 9 already" in (await ran(node, tmp_path))[0]
    assert node.raw == []


async def test_receipt_decides_over_the_nodes_error(node: Node, tmp_path: Path) -> None:
    node.refuses = True
    said = "\n".join(await ran(node, tmp_path))
    assert "already known; waiting for the receipt, because the node may have accepted the transaction" in said
    assert "is provider 9" in said


async def test_reverted_transaction_is_reported(node: Node, tmp_path: Path) -> None:
    node.reverts = True
    with pytest.raises(Fatal, match="was mined and reverted"):
        await ran(node, tmp_path)


async def test_waiting_for_the_admin_reports_each_step_once(node: Node, tmp_path: Path) -> None:
    said: list[str] = []
    node.provider_id = 9
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            said.extend(await ran(node, tmp_path, wait_seconds=600.0))

        nursery.start_soon(wait)
        for name, value in (("listed", 1), ("ceiling", 8), ("allowed", 1)):
            await trio.sleep(30)
            node.admitted[name] = value
    assert [line for line in said if line.startswith("done")] == [
        "done     setListed",
        "done     setCeiling to 8, for 4 slots at reputation 500",
        "done     setModelAllowed for demo/text, or setAllowAllModels",
    ]
    assert said[-1] == "the market's admin has completed every step: run `svcd check`, then `svcd run`"


async def test_waiting_for_the_admin_times_out(node: Node, tmp_path: Path) -> None:
    node.provider_id = 9
    with pytest.raises(Fatal, match="the admin has not finished in 60 s; run this command again later"):
        await ran(node, tmp_path, wait_seconds=60.0)


def configured(market: Market, directory: Path, **changed: Any) -> DaemonConfig:
    return config_for(market, directory, **changed)


async def test_box_key_is_published_with_its_evidence(tmp_path: Path) -> None:
    market, evidence = Market(lambda: START), tmp_path / "evidence.json"
    evidence.write_bytes(b'{"made": "up"}')
    said = await publish_identity(configured(market, tmp_path, evidence_file=evidence), market.transport)
    published = b'{"made":"up","svc_bundle":{"items":500,"v":1},"svc_tab":{"v":1}}'
    assert market.identities == [(market.box.public.raw, published)]
    assert said.endswith(f"with {len(published)} bytes of evidence")


@pytest.mark.parametrize(
    ("content", "published"),
    [
        (None, b'{"svc_bundle":{"items":500,"v":1},"svc_tab":{"v":1}}'),
        (b"a signed text", b"a signed text"),
        (b"[1]", b"[1]"),
    ],
    ids=["no evidence", "no JSON", "no object"],
)
async def test_announcements_are_added_only_to_an_object(
    content: bytes | None, published: bytes, tmp_path: Path
) -> None:
    market, evidence = Market(lambda: START), None
    if content is not None:
        evidence = tmp_path / "evidence"
        evidence.write_bytes(content)
    await publish_identity(configured(market, tmp_path, evidence_file=evidence), market.transport)
    assert [each for _, each in market.identities] == [published]


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ({"chain": unreached()}, "/evm/chain: ConnectError"),
        ({"session": instead(error(403, "not_registered"))}, "not a registered provider"),
        ({"set_identity": instead(answer(409, {"ok": False, "reason": "StaleOp"}))}, "not published: StaleOp"),
    ],
    ids=["no coordinator", "no provider", "refused"],
)
async def test_identity_that_is_not_published_is_fatal_and_says_why(
    scripts: dict[str, Script], message: str, tmp_path: Path
) -> None:
    market = Market(lambda: START, always=scripts)
    with pytest.raises(Fatal, match=message):
        await publish_identity(configured(market, tmp_path), market.transport)
    assert market.identities == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"x" * (MAX_EVIDENCE_BYTES + 1), "evidence may have at most 32768")],
)
async def test_unpublishable_evidence_is_reported_before_signing(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    market, evidence = Market(lambda: START), tmp_path / "evidence"
    if content is not None:
        evidence.write_bytes(content)
    with pytest.raises(Fatal, match=message):
        await publish_identity(configured(market, tmp_path, evidence_file=evidence), market.transport)
    assert market.calls == []


async def test_without_a_box_key_there_is_nothing_to_publish(tmp_path: Path) -> None:
    market = Market(lambda: START)
    with pytest.raises(Fatal, match="no box key is configured"):
        await publish_identity(configured(market, tmp_path, box=None), market.transport)
