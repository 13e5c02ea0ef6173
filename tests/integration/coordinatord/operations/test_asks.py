import time

import pytest

from common.box import SecretKey
from common.bundle import MAX_ITEMS, announcement
from common.canonical_json import canonical
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import Outcome, RefusedByChain, Relaying, RelayMined
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.faults import node_error, unreachable, view
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows, shows_relay_ends
from tests.integration.coordinatord.scene.stage import Stage

PUT = "PUT /evm/asks"
QUOTE = (1, 3600, 5, 7)


@pytest.fixture
def provider_id(stage: Stage, provider: Party) -> int:
    ids = {operator.lower(): number for operator, number in stage.world.market.provider_ids.items()}
    return ids[provider.address]


@shows(PUT, 200)
@shows("GET /evm/asks", 200)
@shows("GET /evm/asks/floors", 200)
async def test_published_asks_are_on_the_book_and_make_floors(provider: Party, stage: Stage, provider_id: int) -> None:
    body = provider.asks(provider_id, QUOTE, (2, 60, 1, 1))
    answer = await provider.publish(body)
    assert answer.json() | {"tx_hash": ""} == {
        "provider_id": str(provider_id),
        "signed_at": str(body["snapshot"]["signed_at"]),
        "published": True,
        "tx_hash": "",
    }
    asks = (await stage.http.get("/evm/asks", params={"model": 1})).json()["asks"]
    nothing_yet = {"window_secs": "604800", "settled": "0", "failed": "0", "reclaimed": "0", "median_secs": None}
    quoted = {"provider_id": str(provider_id), "model_id": "1", "sla": "3600", "rate_in": "5", "rate_out": "7"}
    assert asks == [quoted | {"reliability": nothing_yet}]
    announces = provider.set_identity(SecretKey(bytes([7] * 32)).public.raw, canonical(announcement()))
    assert (await provider.run(announces)).status_code == 201
    assert (await stage.http.get("/evm/asks?model=1")).json()["asks"][0]["largest_bundle"] == MAX_ITEMS
    floors = (await stage.http.get("/evm/asks/floors", params={"model": 1, "sla": 3600})).json()["floors"]
    assert floors == [{"model_id": "1", "sla": "3600", "rate_in": "5", "rate_out": "7"}]
    withdrawn = provider.asks(provider_id, (1, 3600, 0, 0), signed_at=body["snapshot"]["signed_at"] + 1)
    assert (await provider.publish(withdrawn)).status_code == 200
    assert (await stage.http.get("/evm/asks?model=1")).json()["asks"] == []


@shows(PUT, 400, "invalid_request_error")
async def test_malformed_snapshot_is_refused(provider: Party, provider_id: int) -> None:
    for body, param in (
        ({}, "snapshot"),
        ({"snapshot": [], "signature": "0x"}, "snapshot"),
        (provider.asks(provider_id, QUOTE, QUOTE), "snapshot.quotes"),
        (provider.asks(provider_id, (2, 60, 1, 1), QUOTE), "snapshot.quotes"),
        (provider.asks(provider_id, *[(n, 60, 1, 1) for n in range(65)]), "snapshot.quotes"),
        (provider.asks(provider_id, QUOTE, signed_at=int(time.time()) + 4000), "snapshot.signed_at"),
        (provider.asks(provider_id, QUOTE) | {"signature": "0x12"}, "signature"),
    ):
        answer = await provider.publish(body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_snapshot_too_far_ahead_of_the_chain_is_malformed(
    provider: Party, provider_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's clock is ahead of the chain's."""
    monkeypatch.setattr("coordinatord.api.provider_ops.asks.is_too_far_ahead", lambda *_: False)
    answer = await provider.publish(provider.asks(provider_id, QUOTE, signed_at=int(time.time()) + 4000))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "snapshot.signed_at", None)


@shows(PUT, 403, "invalid_signature")
@shows(PUT, 403, "not_registered")
@shows(PUT, 403, "provider_mismatch")
async def test_snapshot_must_be_signed_by_its_provider(
    provider: Party, client: Party, stage: Stage, provider_id: int
) -> None:
    body = provider.asks(provider_id, QUOTE)
    for wrong, code, kind in (
        (body | {"signature": "0x" + "00" * 65}, "invalid_signature", "invalid_op_signature"),
        (client.asks(provider_id, QUOTE), "not_registered", "invalid_op_signature"),
        (provider.asks(provider_id + 1, QUOTE), "provider_mismatch", "authentication_error"),
    ):
        answer = await provider.publish(wrong)
        assert answer.status_code == 403
        assert (answer.json()["error"]["code"], answer.json()["error"]["type"]) == (code, kind)


@shows(PUT, 409, "stale_snapshot")
async def test_snapshot_that_is_not_newer_is_stale(provider: Party, provider_id: int) -> None:
    body = provider.asks(provider_id, QUOTE)
    assert (await provider.publish(body)).status_code == 200
    assert (await provider.publish(body)).json()["error"]["code"] == "stale_snapshot"


@shows(PUT, 409, "superseded")
async def test_snapshot_overtaken_on_its_way_is_superseded(
    provider: Party, provider_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time())
    newer = provider.asks(provider_id, QUOTE, signed_at=now)
    really = Relaying.relay

    async def overtaken(relaying: Relaying, _: NewRelay) -> Outcome:
        monkeypatch.setattr(Relaying, "relay", really)
        assert (await provider.publish(newer)).status_code == 200
        return RefusedByChain("StaleSnapshot", b"")

    monkeypatch.setattr(Relaying, "relay", overtaken)
    answer = await provider.publish(provider.asks(provider_id, QUOTE, signed_at=now - 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "superseded")


@shows(PUT, 503, "publication_skipped")
async def test_transaction_that_published_nothing_is_retryable(
    provider: Party, stage: Stage, provider_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    anvil, somebody = stage.world.anvil, stage.world.wallets.admin.address
    sent = await anvil.call("eth_sendTransaction", {"from": somebody, "to": somebody})
    block = await anvil.call("eth_blockNumber")
    relay_ends.ending(monkeypatch, lambda: RelayMined(bytes.fromhex(sent[2:]), int(block, 16)))
    answer = await provider.publish(provider.asks(provider_id, QUOTE))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "publication_skipped")
    assert answer.headers["x-svc-retryable"] == "true"


@shows(PUT, 413, "body_too_large")
@shows(PUT, 503, "provider_id_read")
@shows(PUT, 503, "registry_floor_read")
@shows_relay_ends(PUT)
@shows(PUT, 503, "chain_unreachable")
async def test_trouble_on_the_way_of_a_snapshot(
    provider: Party, stage: Stage, provider_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = provider.asks(provider_id, QUOTE)
    large = await stage.http.put("/evm/asks", content=b" " * 32769, headers=provider.authorization)
    assert large.status_code == 413
    with stage.node.answering(unreachable):
        assert (await provider.publish(body)).json()["error"]["type"] == "chain_unreachable"
    for read, code in (
        ("providerIdOf(address)", "provider_id_read"),
        ("latestSignedAt(uint32)", "registry_floor_read"),
    ):
        with stage.node.answering(node_error(view(read))):
            assert (await provider.publish(body)).json()["error"]["code"] == code
    message = await relay_ends.check_each_end(monkeypatch, lambda: provider.publish(body))
    assert "GET /evm/asks" in message
