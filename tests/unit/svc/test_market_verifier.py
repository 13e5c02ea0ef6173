"""Facts reported by a coordinator are checked against an address book, earlier facts, and the chain."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from common.box import SecretKey
from common.escrow_evidence import report_data
from common.quotes import FeeTerms
from common.scalars import hex_of
from svc.core.known_market import KnownMarket
from svc.errors import ChainContradicts, EscrowUntrusted, MarketChanged, NodeFailed, NoProvider, OrderRefused, SvcError
from svc.known_markets import KnownMarkets, UpdateMarket
from tests.unit.svc.fake_chain import NODE, OTHER_NODE, TOLD, FakeNode
from tests.unit.svc.fake_coordinator import (
    BOX_SECRET,
    CANDIDATE,
    DEPLOYMENT,
    Answer,
    FakeCoordinator,
    provider,
    quoting,
)
from tests.unit.svc.test_orders import JOBS, in_turn

URL = "https://coordinator"
OTHER_KEY = SecretKey(bytes(range(1, 33))).public
CONTRACTS = (TOLD.job_registry, TOLD.provider_registry, TOLD.ask_registry, TOLD.paytoken)
CHAIN, PROVIDER = "GET /evm/chain", "GET /evm/providers/7"


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator({JOBS: [in_turn(submitted=[])], "GET /key": [_escrow(BOX_SECRET.public.raw)]})


@pytest.fixture
def known(tmp_path: Path) -> KnownMarkets:
    return KnownMarkets(tmp_path / "svc" / "known_markets.json")


def _escrow(key: bytes, kind: str = "static-coordinator-v1") -> Answer:
    public = SecretKey(bytes(range(32))).public if key == BOX_SECRET.public.raw else OTHER_KEY
    evidence = {"type": kind, "report_data": report_data(public).hex(), "debug": False, "release": 1}
    return Answer(200, {"escrow_public_key": key.hex(), "evidence": evidence, "issued_at": 1})


def _changed(**fields: Any) -> Answer:
    return Answer(200, DEPLOYMENT | fields)


def _told(told: list[str]) -> dict[str, Any]:
    return {"on_first_use": told.append}


async def test_first_use_is_remembered_and_reported_once(coordinator: FakeCoordinator, known: KnownMarkets) -> None:
    told: list[str] = []
    for _ in range(2):
        client = coordinator.client(known_markets=known.path, **_told(told))
        await client.prepare("demo/text", "hello")
        await client.escrow()
    market, provider_key, escrow = told
    assert market.startswith(f"first use of {URL}: remembered chain 31337, job registry 0x1111")
    assert "--addresses" in market
    assert provider_key.startswith(f"{URL}: remembered the key of provider 7, unverified: 0x")
    assert "remembered the escrow key" in escrow
    entry = known.get(URL)
    assert entry is not None
    assert (entry.deployment, dict(entry.box_keys)) == (TOLD, {7: BOX_SECRET.public.raw.hex()})
    assert dict(entry.escrow_keys) == {BOX_SECRET.public.raw.hex(): "static-coordinator-v1"}


LIES = {
    "chain_id": 1,
    "decimals": 18,
    "token_domain": {"name": "Dev Dollar", "version": "2"},
    **{
        f"contracts.{name}": DEPLOYMENT["contracts"] | {name: "0x" + "66" * 20}  # type: ignore[operator] # nested
        for name in ("job_registry", "provider_registry", "ask_registry", "paytoken")
    },
}


@pytest.mark.parametrize("field", LIES)
@pytest.mark.parametrize("by", ["known", "book"])
async def test_other_deployment_is_refused_showing_both(
    coordinator: FakeCoordinator, known: KnownMarkets, by: str, field: str
) -> None:
    pinned = {"addresses": attrs.evolve(TOLD, deploy_block=9)} if by == "book" else {}
    await coordinator.client(known_markets=known, on_first_use=str).prepare("demo/text", "hello")
    coordinator.tell(CHAIN, _changed(**{field.partition(".")[0]: LIES[field]}))
    with pytest.raises(MarketChanged) as refused:
        await coordinator.client(known_markets=known, **pinned).prepare("demo/text", "hello")
    assert refused.value.code == "deployment_changed"
    assert "expected" in refused.value.message
    command = f"svc market accept --coordinator {URL} --deployment "
    assert (command in refused.value.message) is (by == "known")
    entry = known.get(URL)
    assert entry is not None
    assert entry.deployment == TOLD


async def test_address_book_pins_a_new_market_silently(coordinator: FakeCoordinator, known: KnownMarkets) -> None:
    told: list[str] = []
    await coordinator.client(known_markets=known, addresses=TOLD, **_told(told)).chain()
    assert told == []
    coordinator.tell(CHAIN, _changed(chain_id=1))
    with pytest.raises(MarketChanged, match="chain id: expected 31337, reported 1"):
        await coordinator.client(addresses=TOLD).chain()


async def test_unknown_market_is_refused_where_the_caller_said_so(
    coordinator: FakeCoordinator, known: KnownMarkets
) -> None:
    careful = {"known_markets": known, "require_known_market": True, "on_first_use": str}
    with pytest.raises(MarketChanged) as refused:
        await coordinator.client(**careful).prepare("demo/text", "hello")
    assert (refused.value.code, known.all()) == ("market_unknown", {})
    await coordinator.client(**careful, addresses=TOLD).prepare("demo/text", "hello")
    await coordinator.client(**careful).prepare("demo/text", "hello")  # from this call on


@pytest.mark.parametrize("by", ["candidate", "registry", "batch"])
async def test_providers_other_key_is_sealed_to_nowhere(
    coordinator: FakeCoordinator, known: KnownMarkets, by: str
) -> None:
    await coordinator.client(known_markets=known, on_first_use=str).prepare("demo/text", "hello")
    lie = {"box_key": hex_of(OTHER_KEY.raw)}
    coordinator.tell(JOBS, in_turn(submitted=[], probed=[CANDIDATE | lie]))
    coordinator.tell(PROVIDER, Answer(200, provider(**lie)))
    client = coordinator.client(known_markets=known)
    line = {"body": {"model": "demo/text", "input": "x", "rate_in": 1}}
    orders = {
        "candidate": lambda: client.prepare("demo/text", "hello"),
        "registry": lambda: client.prepare("demo/text", "hello", provider=7, rate_in=1),
        "batch": lambda: client.batches.prepare([line], window="1h", providers=[7]),
    }
    with pytest.raises(MarketChanged) as refused:
        await orders[by]()
    assert refused.value.code == "box_key_changed"
    told = f"known {CANDIDATE['box_key']}, reported {lie['box_key']}"
    assert told in refused.value.message
    assert f"svc market accept --coordinator {URL} --provider 7 --box-key {lie['box_key']}" in refused.value.message


async def test_key_of_one_provider_is_not_taken_for_another(coordinator: FakeCoordinator) -> None:
    coordinator.tell(PROVIDER, Answer(200, provider(provider_id="8")))
    with pytest.raises(OrderRefused, match="returned provider 8 instead of 7"):
        await coordinator.client().prepare("demo/text", "hello", provider=7, rate_in=1)
    coordinator.tell(JOBS, in_turn(submitted=[], probed=[CANDIDATE | {"provider_id": "0"}]))
    with pytest.raises(OrderRefused, match="0 is not a valid provider id"):
        await coordinator.client().prepare("demo/text", "hello")


async def test_escrows_other_key_is_refused_until_it_is_accepted(
    coordinator: FakeCoordinator, known: KnownMarkets
) -> None:
    await coordinator.client(known_markets=known, on_first_use=str).escrow()
    coordinator.tell("GET /key", _escrow(OTHER_KEY.raw))
    with pytest.raises(EscrowUntrusted) as refused:
        await coordinator.client(known_markets=known).prepare("demo/text", "hello", rate_in=1)
    assert refused.value.code == "escrow_changed"
    assert f"known {BOX_SECRET.public.raw.hex()}, reported {OTHER_KEY.raw.hex()}" in refused.value.message
    assert f"svc market accept --coordinator {URL} --escrow {OTHER_KEY.raw.hex()}" in refused.value.message
    known.change(URL, lambda entry: entry and entry.with_escrow_key(OTHER_KEY.raw.hex(), "static-coordinator-v1"))
    await coordinator.client(known_markets=known).prepare("demo/text", "hello", rate_in=1)


async def test_development_escrow_cannot_replace_a_real_one(coordinator: FakeCoordinator, known: KnownMarkets) -> None:
    mock = "mock-coordinator-v1"
    taking = {"known_markets": known, "allow_mock_escrow": True, "on_first_use": str}
    coordinator.tell("GET /key", _escrow(BOX_SECRET.public.raw, mock))
    await coordinator.client(**taking).escrow()
    coordinator.tell("GET /key", _escrow(OTHER_KEY.raw, mock))
    await coordinator.client(**taking).escrow()
    entry = known.get(URL)
    assert entry is not None
    assert dict(entry.escrow_keys) == {OTHER_KEY.raw.hex(): mock}
    coordinator.tell("GET /key", _escrow(BOX_SECRET.public.raw))
    with pytest.raises(EscrowUntrusted):  # the actual escrow is announced and accepted
        await coordinator.client(**taking).escrow()
    known.change(URL, lambda entry: entry and attrs.evolve(entry, escrow_keys={"ab" * 32: "static-coordinator-v1"}))
    coordinator.tell("GET /key", _escrow(BOX_SECRET.public.raw, mock))
    with pytest.raises(EscrowUntrusted) as refused:
        await coordinator.client(**taking).escrow()
    assert refused.value.code == "escrow_changed"


async def test_market_that_cannot_be_remembered_is_told_each_time(coordinator: FakeCoordinator, tmp_path: Path) -> None:
    (tmp_path / "svc").write_text("a file in the folder's place")
    told: list[str] = []
    with pytest.raises(OrderRefused, match="must be a folder"):
        await coordinator.client(known_markets=tmp_path / "svc" / "known.json", **_told(told)).chain()
    path = tmp_path / "closed" / "known.json"
    await coordinator.client(known_markets=_Unwritable(path), **_told(told)).chain()
    (line,) = told
    assert line.startswith(f"cannot store known markets in {path}: Read-only file system")


class _Unwritable(KnownMarkets):
    """A folder that only root can write to."""

    def change(self, url: str, update: UpdateMarket) -> KnownMarket | None:
        raise OSError(30, "Read-only file system")


# --- the chain ---------------------------------------------------------------------------------------------------


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "other chain": ({"chain_id": 1}, "chain id"),
    "no code": ({"no_code": TOLD.job_registry}, "contract of SVC Jobs"),
    "other domain": ({"separators": dict.fromkeys(CONTRACTS, b"\x01" * 32)}, "signing domain of SVC Jobs"),
    "other token": ({"token": b"\x66" * 20}, "payment token"),
    "other providers": ({"registry": b"\x66" * 20}, "provider registry"),
    "other decimals": ({"decimals": 18}, "token decimals"),
    "other model": ({"model": "demo/other"}, "model 1"),
    "model taken away": ({"enabled": False}, "model demo/text"),
    "other key": ({"provider": {"operator": b"\x77" * 20, "boxKey": b"\x66" * 32}}, "key of provider 7"),
    "no provider": ({"provider": {}}, "provider 7"),
    "other fees": ({"fees": FeeTerms(1, 2)}, "fees"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
async def test_contradiction_by_the_chain_prevents_signing(coordinator: FakeCoordinator, name: str) -> None:
    changed, fact = CONTRADICTIONS[name]
    coordinator.tell(f"POST {NODE}/", FakeNode(**changed))
    coordinator.tell(JOBS, in_turn(submitted=[], quoted=quoting()))
    client = coordinator.client(rpc_url=NODE)
    with pytest.raises(ChainContradicts) as refused:
        await client.submit(await client.prepare("demo/text", "hello"))
    assert (refused.value.code, refused.value.param) == ("chain_contradicts", fact)
    assert not any("auth_sig" in asked.body for asked in coordinator.to(JOBS))


async def test_provider_that_is_not_listed_is_not_sealed_to(coordinator: FakeCoordinator) -> None:
    node = FakeNode()
    node.provider["listed"] = False
    coordinator.tell(f"POST {NODE}/", node)
    with pytest.raises(NoProvider, match="not listed on the chain"):
        await coordinator.client(rpc_url=NODE).prepare("demo/text", "hello")


async def test_providers_new_key_is_taken_where_the_chain_has_it(
    coordinator: FakeCoordinator, known: KnownMarkets
) -> None:
    told: list[str] = []
    await coordinator.client(known_markets=known, on_first_use=str).prepare("demo/text", "hello")
    node = FakeNode()
    node.provider["boxKey"] = OTHER_KEY.raw
    coordinator.tell(f"POST {NODE}/", node)
    coordinator.tell(JOBS, in_turn(submitted=[], probed=[CANDIDATE | {"box_key": hex_of(OTHER_KEY.raw)}]))
    await coordinator.client(known_markets=known, rpc_url=NODE, **_told(told)).prepare("demo/text", "hello")
    assert told == [f"{URL}: remembered the key of provider 7, confirmed by the chain: {hex_of(OTHER_KEY.raw)}"]
    entry = known.get(URL)
    assert entry is not None
    assert dict(entry.box_keys) == {7: OTHER_KEY.raw.hex()}


@pytest.mark.parametrize("changed", [{"decimals": 7}, {"chain_id": 2}, {"fees": FeeTerms(1, 1)}])
async def test_nodes_that_disagree_are_believed_in_nothing(
    coordinator: FakeCoordinator, changed: dict[str, Any]
) -> None:
    coordinator.tell(f"POST {NODE}/", FakeNode())
    coordinator.tell(f"POST {OTHER_NODE}/", FakeNode(**changed))
    client = coordinator.client(rpc_url=f"{NODE},{OTHER_NODE}")
    with pytest.raises(NodeFailed, match=r"node\.example, other\.example disagree"):
        await client.submit(await client.prepare("demo/text", "hello"))


async def test_nodes_a_block_apart_agree(coordinator: FakeCoordinator) -> None:
    coordinator.tell(f"POST {NODE}/", FakeNode(head=900))
    coordinator.tell(f"POST {OTHER_NODE}/", FakeNode(head=903))
    await coordinator.client(rpc_url=[NODE, OTHER_NODE]).prepare("demo/text", "hello")


async def test_silent_node_prevents_unchecked_facts(coordinator: FakeCoordinator) -> None:
    with pytest.raises(SvcError) as failed:
        await coordinator.client(rpc_url=NODE).prepare("demo/text", "hello")
    assert failed.value.code == "node_failed"
