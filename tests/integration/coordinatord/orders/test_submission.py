"""Submissions of orders, and preflights, which report all failed checks at once and change nothing."""

import time
from math import ceil

import anyio
import httpx
import pytest

from common.api import errors
from common.container import commitment_of
from common.scalars import base64_of
from coordinatord.storage.pins.store import PART_BYTES
from devnet.catalogue import SLA_WINDOWS_S
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.running import BOOK
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.faults import method, node_error, status, unreachable, view
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.shows import shows, shows_relay_ends
from tests.integration.coordinatord.scene.specification import CONTRACT_ERROR, MALFORMED
from tests.integration.coordinatord.scene.stage import Stage, until
from tests.integration.coordinatord.scene.unmined import until_true


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


@shows_relay_ends("POST /v1/jobs")
async def test_relay_that_was_given_up_is_retryable(
    client: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await client.paid()
    await relay_ends.check_each_end(monkeypatch, lambda: stage.http.post("/v1/jobs", json=body))
    assert await stage.stored(f"containers/{body['job_id'][2:]}")  # for the retry
    monkeypatch.undo()
    assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201


async def test_same_submission_sent_at_once_shares_one_relay(client: Party, stage: Stage) -> None:
    body = await client.paid()
    answers: list[httpx.Response] = []

    async def send() -> None:
        answers.append(await stage.http.post("/v1/jobs", json=body))

    async with mining_by_hand(stage.world.anvil), anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(send)
        await until_true(lambda: stage.fetchval("select count(*) > 0 from relays where state = 'signed'"))
        await stage.world.anvil.call("evm_mine")
    hashes = {answer.json()["tx_hash"] for answer in answers if answer.status_code == 201}
    assert {answer.status_code for answer in answers} <= {201, 409}  # later requests find the job posted
    assert len(hashes) == 1
    assert await stage.fetchval("select count(*) from relays where state = 'mined'") == 1


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


CHECK = "/v1/jobs/check"


async def checked(stage: Stage, body: Body) -> Body:
    answer = await stage.http.post(CHECK, json=body)
    assert answer.status_code == 200, answer.text
    told: Body = answer.json()
    return told


def named(told: Body) -> list[str]:
    return [failure["code"] or failure["param"] for failure in told["failures"]]


@shows("POST /v1/jobs/check", 200)
async def test_valid_preflight_returns_price_and_candidates(client: Party, provider: Party, stage: Stage) -> None:
    await stage.http.get("/evm/jobs?state=Open&model=1&free=1", headers=provider.authorization)
    await stage.execute("insert into asks values (1, 1, 3600, 1, 1)")
    body = await client.paid()
    told = await checked(stage, body)
    assert (told["ok"], told["checked"], told["failures"]) == (True, "submission", [])
    assert told["quote"]["amount"] == body["amount"]
    assert [each["provider_id"] for each in told["candidates"]] == ["1"]
    for table in ("relays", "objects", "gas_bookings", "files"):
        assert await stage.fetchval(f"select count(*) from {table}") == 0  # noqa: S608 - named here
    assert not await stage.stored(f"containers/{body['job_id'][2:]}")
    assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201


async def test_preflight_reports_all_failures_and_post_the_first(client: Party, stage: Stage) -> None:
    body = await client.paid(model_id=1)
    broken = client.order(model_id=999, sla_secs=90_000, expires_at=int(time.time()) - 5) | {
        "signature": body["signature"],
        "auth_sig": body["auth_sig"],
        "amount": "7",
        "container": base64_of(b"\x02" * 200),
    }
    told = await checked(stage, broken)
    assert named(told) == [
        "expires_at",
        "sla_secs",
        "invalid_order_signature",
        "amount",
        "invalid_payment_signature",
        "bad_version",
        "model_id",
        "sla_secs",
    ]
    assert all(failure["remedy"] and failure["message"] for failure in told["failures"])
    remedies = {failure["code"] or failure["param"]: failure["remedy"] for failure in told["failures"][:6]}
    assert remedies["expires_at"] == errors.LINE_ERRORS["order_expired"][1]
    assert remedies["invalid_order_signature"] == errors.ERRORS_BY_CODE["invalid_order_signature"].remedy
    first = (await stage.http.post("/v1/jobs", json=broken)).json()["error"]
    failure = told["failures"][0]
    assert (first["message"], first["param"], first["code"]) == (failure["message"], failure["param"], failure["code"])


async def test_order_without_payment_is_checked_on_chain(client: Party, stage: Stage) -> None:
    told = await checked(stage, client.order(model_id=999, sla_secs=7))
    assert (told["checked"], named(told)) == ("order", ["model_id", "sla_secs"])
    assert f"one of {', '.join(map(str, sorted(SLA_WINDOWS_S)))} (" in told["failures"][1]["message"]
    body = await client.paid()
    assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201
    only = {name: value for name, value in body.items() if name not in ("auth_sig", "amount", "container")}
    assert named(await checked(stage, only)) == ["DuplicateJob"]
    assert named(await checked(stage, body)) == ["DuplicateJob"]
    another = await client.paid()
    await stage.world.anvil.call("anvil_dealERC20", client.address, stage.world.market.token, "0x0")
    poor = await checked(stage, client.order())
    assert (poor["ok"], named(poor)) == (False, ["InsufficientBalance"])
    assert named(await checked(stage, another)) == ["InsufficientBalance"]


async def test_owner_over_its_gas_budget_is_told(client: Party, stage: Stage) -> None:
    await stage.execute(BOOK, client.wallet.address, 10**12, 0)
    told = await checked(stage, client.order())
    assert (named(told), told["quote"] is not None) == (["busy"], True)


async def test_fields_that_cannot_be_read_are_all_named(client: Party, stage: Stage) -> None:
    told = await checked(stage, client.order() | {"rate_in": "-1", "units_in": None, "owner": "0x00"})
    assert (told["ok"], told["quote"], sorted(named(told))) == (False, None, ["owner", "rate_in", "units_in"])
    shapeless = await checked(stage, client.order() | {"container": "AAAA"})
    assert named(shapeless) == ["container_without_payment"]
    both = {**await client.paid(), "container_cid": "bafy"}
    assert named(await checked(stage, both)) == ["container_ambiguous", "unknown_container"]


@shows("POST /v1/jobs/check", *MALFORMED)
@shows("POST /v1/jobs/check", 413, "body_too_large")
async def test_body_that_is_no_object_or_too_large(stage: Stage) -> None:
    assert (await stage.http.post(CHECK, content=b"[]")).status_code == 400
    large = await stage.http.post(CHECK, content=b" " * (20 * 1024 * 1024 + 1))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")


@shows("POST /v1/jobs", 503, "chain_unreachable")
@shows("POST /v1/jobs", 503, "registry_floor_read")
@shows("POST /v1/jobs", 503, "payer_code_read")
@shows("POST /v1/jobs", 503, "rate_limited")
@shows("POST /v1/jobs/check", 503, "chain_unreachable")
@shows("POST /v1/jobs/check", 503, "registry_floor_read")
@shows("POST /v1/jobs/check", 503, "payer_code_read")
@shows("POST /v1/jobs/check", 503, "rate_limited")
@shows("POST /v1/jobs/check", 503, "job_read")
async def test_chain_that_cannot_be_read_is_503_by_what_was_read(client: Party, stage: Stage) -> None:
    body = await client.paid()
    for rule, kind, code in (
        (unreachable, "chain_unreachable", None),
        (node_error(view("fees()")), "relay_unavailable", "registry_floor_read"),
        (node_error(view("fees()"), -32005, "slow down"), "relay_unavailable", "rate_limited"),
        (node_error(view("modelEnabled(uint32)")), "relay_unavailable", "registry_floor_read"),
        (node_error(method("eth_getCode"), only=True), "relay_unavailable", "payer_code_read"),
    ):
        for path in ("/v1/jobs", CHECK):
            with stage.node.answering(rule):
                answer = await stage.http.post(path, json=body)
            assert (answer.status_code, answer.headers["x-svc-retryable"]) == (503, "true")
            assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (kind, code)
    with stage.node.answering(node_error(view("job(bytes32)"))):
        assert (await stage.http.post(CHECK, json=body)).json()["error"]["code"] == "job_read"
    assert (await stage.http.post("/v1/jobs", json=body)).status_code == 201


@shows("POST /v1/jobs/check", 429, "busy")
async def test_checks_that_would_wait_too_long_are_told_to_come_again(
    client: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinatord.api.orders.preflight.MAX_WAITING_CHECKS", 0)
    answer = await stage.http.post(CHECK, json=client.order())
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "busy")
