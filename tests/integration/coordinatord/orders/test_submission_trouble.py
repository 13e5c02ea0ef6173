import pytest

from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.faults import status, unreachable
from tests.integration.coordinatord.scene.node_faults import method, node_error, view
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.specification import ANY_HASH
from tests.integration.coordinatord.scene.stage import Stage, until

pytestmark = pytest.mark.anyio


@shows("POST /v1/jobs", 503, "chain_unreachable")
@shows("POST /v1/jobs", 503, "registry_floor_read")
@shows("POST /v1/jobs", 503, "payer_code_read")
@shows("POST /v1/jobs", 503, "rate_limited")
async def test_chain_that_cannot_be_read_is_503_by_what_was_read(client: Party, stage: Stage) -> None:
    body = await client.paid()
    for rule, kind, code in (
        (unreachable, "chain_unreachable", None),
        (node_error(view("fees()")), "relay_unavailable", "registry_floor_read"),
        (node_error(view("fees()"), -32005, "slow down"), "relay_unavailable", "rate_limited"),
        (node_error(view("modelEnabled(uint32)")), "relay_unavailable", "registry_floor_read"),
    ):
        with stage.node.answering(rule):
            answer = await stage.http.post("/v1/jobs", json=body)
        assert answer.status_code == 503
        assert answer.headers["x-svc-retryable"] == "true"
        assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (kind, code)
    with stage.node.answering(node_error(method("eth_getCode"), only=True)):
        assert (await stage.http.post("/v1/jobs", json=body)).json()["error"]["code"] == "payer_code_read"
    assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201


@pytest.mark.parametrize("code", [pytest.param(c, marks=shows("POST /v1/jobs", 503, c)) for c in relay_ends.CODES])
async def test_relay_that_was_given_up_is_retryable(
    client: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    body = await client.paid()
    relay_ends.ending(monkeypatch, relay_ends.dropped(code))
    answer = await stage.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
    assert answer.headers["x-svc-retryable"] == "true"
    assert await stage.stored(f"containers/{body['job_id'][2:]}")  # for the retry
    monkeypatch.undo()
    assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201


async def test_fee_change_before_the_post_returns_a_fresh_quote(
    client: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await client.paid()
    relay_ends.ending(monkeypatch, relay_ends.refused("WrongAmount"))
    answer = await stage.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["quote"]["amount"]) == (409, body["amount"])
    assert answer.headers["x-svc-retryable"] == "false"
    assert not await stage.stored(f"containers/{body['job_id'][2:]}")  # no retry will need it


@shows("POST /v1/jobs", 429, "busy")
async def test_busy_subject_is_429_with_a_time_to_retry_after(
    client: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await client.paid()
    relay_ends.ending(monkeypatch, relay_ends.busy)
    answer = await stage.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "busy")
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["x-svc-retryable"] == "true"


@shows("POST /v1/jobs", 504, ANY_HASH)
async def test_post_without_a_receipt_is_504_and_is_joined_by_the_next(
    client: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await client.paid()
    monkeypatch.setattr(stage.relaying, "receipt_wait_s", 0.3)
    await stage.world.anvil.call("evm_setAutomine", False)
    try:
        first = await stage.http.post("/v1/jobs", json=body)
        again = await stage.http.post("/v1/jobs", json=body)
    finally:
        await stage.world.anvil.call("evm_setAutomine", True)
    assert (first.status_code, again.status_code) == (504, 504)
    assert first.headers["x-svc-retryable"] == "false"
    assert first.json()["error"]["type"] == "receipt_timeout"
    assert first.json()["error"]["code"] == again.json()["error"]["code"]
    assert f"/v1/jobs/{body['job_id']}" in first.json()["error"]["message"]
    await stage.world.anvil.call("evm_mine")
    await until(lambda: stage.http.get(f"/v1/jobs/{body['job_id']}"), 200)
    assert await stage.fetchval("select count(*) from relay_txs") == 1
    assert await stage.stored(f"containers/{body['job_id'][2:]}")


@shows("POST /v1/jobs", 503, "store_unavailable")
@shows("POST /v1/jobs", 503, "store_rejected")
async def test_store_that_fails_posts_nothing(client: Party, stage: Stage) -> None:
    body = await client.paid()
    for rule, code in (
        (unreachable, "store_unavailable"),
        (status(500), "store_unavailable"),
        (status(403), "store_rejected"),
        (status(200), "store_rejected"),  # a response without a content id
    ):
        with stage.store.answering(rule):
            answer = await stage.http.post("/v1/jobs", json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "pinner_unavailable")
        assert answer.json()["error"]["code"] == code
    assert await stage.fetchval("select count(*) from relays") == 0
    assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201
