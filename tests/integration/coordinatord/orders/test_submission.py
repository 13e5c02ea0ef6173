from math import ceil

import httpx
import pytest

from common.container import commitment_of
from common.scalars import base64_of, hex_of
from coordinatord.storage.pins.store import PART_BYTES
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.faults import status, unreachable
from tests.integration.coordinatord.scene.node_faults import method, node_error, view
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows, shows_relay_ends
from tests.integration.coordinatord.scene.specification import CONTRACT_ERROR, MALFORMED
from tests.integration.coordinatord.scene.stage import Stage, until

pytestmark = pytest.mark.anyio


@shows("POST /v1/jobs", 402)
async def test_quote_prices_the_order_and_says_what_to_sign(client: Party, stage: Stage) -> None:
    order = client.order()
    answer = await stage.http.post("/v1/jobs", json=order)
    assert answer.headers["x-svc-retryable"] == "false"
    quote = answer.json()["quote"]
    cap = (1_000_000 * 1000 + 2_000_000 * 1000) // 10**6
    assert (quote["cap"], quote["fee_bps"], quote["gas_fee"]) == (str(cap), 250, "2000")
    assert quote["fee"] == str(cap * 250 // 10000)
    assert int(quote["amount"]) == cap + cap * 250 // 10000 + 2000
    assert quote["authorization"] | {"domain": None} == {
        "domain": None,
        "to": hex_of(stage.ground.config.addresses.job_registry),
        "value": quote["amount"],
        "valid_after": "0",
        "valid_before": str(int(order["expires_at"]) + 1),
        "nonce": order["job_id"],
    }
    assert answer.json()["accepts"] == [{"scheme": "eip3009", "network": "eip155:31337"}]
    assert answer.json()["candidates"] == []


async def test_probe_without_offers_returns_no_candidates(stage: Stage) -> None:
    question = {"model_id": 1, "sla_secs": 3600, "units_in": 1, "units_out": 1}
    for unknown in ({"model_id": 999}, {"sla_secs": 7}, {"designated": 999}):
        answer = await stage.http.post("/v1/jobs", json=question | unknown)
        assert (answer.status_code, answer.json()) == (402, {"candidates": []})


@shows("POST /v1/jobs", 201)
@shows("POST /v1/jobs", 409, CONTRACT_ERROR)
async def test_submission_posts_once_and_then_is_a_duplicate(client: Party, stage: Stage) -> None:
    body = await client.paid()
    first = await stage.http.post("/v1/jobs", json=body)
    assert first.status_code == 201
    assert set(first.json()) == {"job_id", "task_cid", "tx_hash"}
    again = await stage.http.post("/v1/jobs", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "DuplicateJob")
    assert again.headers["x-svc-retryable"] == "false"
    assert await stage.stored(f"containers/{body['job_id'][2:]}")


@shows("POST /v1/jobs", *MALFORMED)
@shows("POST /v1/jobs", 413, "body_too_large")
async def test_malformed_body_is_refused_and_its_field_named(client: Party, stage: Stage) -> None:
    for raw in (b"{", b'{"a":1,"a":2}', b"[" * 100_000):
        answer = await stage.http.post("/v1/jobs", content=raw)
        assert (answer.status_code, answer.json()["error"]["type"]) == MALFORMED
    answer = await stage.http.post("/v1/jobs", json=client.order() | {"rate_in": "1_000"})
    assert (answer.status_code, answer.json()["error"]["param"], answer.json()["error"]["code"]) == (
        400,
        "rate_in",
        None,
    )
    large = await stage.http.post("/v1/jobs", content=b" " * (20 * 1024 * 1024 + 1))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")


@shows("POST /v1/jobs", 400, "cap_overflow")
@shows("POST /v1/jobs", 400, "invalid_order_signature")
@shows("POST /v1/jobs", 400, "container_without_payment")
@shows("POST /v1/jobs", 400, "container_required")
@shows("POST /v1/jobs", 400, "container_ambiguous")
@shows("POST /v1/jobs", 400, "unknown_container")
@shows("POST /v1/jobs", 400, "invalid_payment_signature")
@shows("POST /v1/jobs", 400, "too_short")
@shows("POST /v1/jobs", 400, "bad_version")
@shows("POST /v1/jobs", 400, "commitment_mismatch")
async def test_invalid_submission_is_400_with_its_code(client: Party, stranger: Party, stage: Stage) -> None:
    order, whole, container = client.order(), await client.paid(), client.container()
    for body, code in (
        (client.order(rate_in=2**128 - 1, units_in=2**32 - 1), "cap_overflow"),
        (order | {"rate_in": "5"}, "invalid_order_signature"),
        (order | {"signature": stranger.order()["signature"]}, "invalid_order_signature"),
        (order | {"signature": order["signature"][:-2] + "00"}, "invalid_order_signature"),
        (order | {"container": "AAAA"}, "container_without_payment"),
        (client.pay(order, 5), "container_required"),
        (whole | {"container_cid": "bafy"}, "container_ambiguous"),
        ({k: v for k, v in whole.items() if k != "container"} | {"container_cid": "bafy"}, "unknown_container"),
        (stranger.pay(whole, int(whole["amount"])), "invalid_payment_signature"),
        (whole | {"container": base64_of(container[:121])}, "too_short"),
        (whole | {"container": base64_of(b"\x02" + container[1:])}, "bad_version"),
        (whole | {"container": base64_of(container)}, "commitment_mismatch"),
    ):
        answer = await stage.http.post("/v1/jobs", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


@shows("POST /v1/jobs", 409)
async def test_outdated_amount_is_answered_with_a_fresh_quote(client: Party, stage: Stage) -> None:
    body = await client.paid()
    cheap = client.pay(body, int(body["amount"]) - 1)
    answer = await stage.http.post("/v1/jobs", json=cheap)
    assert answer.status_code == 409
    assert answer.json()["quote"]["amount"] == body["amount"]
    assert answer.headers["x-svc-retryable"] == "false"


@shows("POST /v1/jobs", 400, "payer_has_code")
@pytest.mark.parametrize("code", ["0x6001", "0xef0100" + "11" * 20], ids=["contract", "delegation"])
async def test_payer_with_code_is_refused(client: Party, stage: Stage, code: str) -> None:
    body = await client.paid()
    await stage.world.anvil.call("anvil_setCode", client.address, code)
    answer = await stage.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "payer_has_code")


async def test_largest_inline_container_is_posted_through_parts(client: Party, stage: Stage) -> None:
    overhead = len(client.container(b"")) + 17 * (15_679_488 // 65536 + 1)
    container = client.container(bytes(15_679_488 - overhead))
    assert 15_600_000 < len(container) <= 15_679_488
    parts: list[str] = []

    def note(request: httpx.Request) -> None:
        if "partNumber" in request.url.params:
            parts.append(request.url.params["partNumber"])

    with stage.store.answering(note):
        posted = await client.post(container=container)
    assert parts == [str(n + 1) for n in range(ceil(len(container) / PART_BYTES))]
    assert len(parts) > 1
    assert await stage.ground.pins.get(f"containers/{posted['job_id'][2:]}") == container
    assert commitment_of(container).length == len(container)


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


@shows_relay_ends("POST /v1/jobs")
async def test_relay_that_was_given_up_is_retryable(
    client: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await client.paid()
    await relay_ends.check_each_end(monkeypatch, lambda: stage.http.post("/v1/jobs", json=body))
    assert await stage.stored(f"containers/{body['job_id'][2:]}")  # for the retry
    monkeypatch.undo()
    assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201


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
