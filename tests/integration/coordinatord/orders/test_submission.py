from math import ceil

import httpx
import pytest

from common.container import commitment_of
from coordinatord.storage.pins.store import PART_BYTES
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.faults import method, node_error, status, unreachable, view
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows, shows_relay_ends
from tests.integration.coordinatord.scene.specification import CONTRACT_ERROR
from tests.integration.coordinatord.scene.stage import Stage, until

pytestmark = pytest.mark.anyio


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


@shows("POST /v1/jobs", 413, "body_too_large")
async def test_body_over_20_mib_is_refused(stage: Stage) -> None:
    large = await stage.http.post("/v1/jobs", content=b" " * (20 * 1024 * 1024 + 1))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
