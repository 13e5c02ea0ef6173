import json
import time
from math import ceil
from typing import Any

import anyio
import httpx
import pytest

from common.container import commitment_of
from common.scalars import base64_of, hex_of
from coordinatord.storage.pins.store import PART_BYTES
from devnet.catalogue import SLA_WINDOWS_S
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.specification import CONTRACT_ERROR
from tests.integration.coordinatord.scene.stage import Stage

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


async def test_quote_comes_before_model_and_window_are_checked(client: Party, stage: Stage) -> None:
    order = client.order(model_id=999, sla_secs=7)
    assert (await stage.http.post("/v1/jobs", json=order)).status_code == 402


async def test_probe_without_offers_returns_no_candidates(stage: Stage) -> None:
    question = {"model_id": 1, "sla_secs": 3600, "units_in": 1, "units_out": 1}
    for unknown in ({"model_id": 999}, {"sla_secs": 7}, {"designated": 999}):
        answer = await stage.http.post("/v1/jobs", json=question | unknown)
        assert (answer.status_code, answer.json()) == (402, {"candidates": []})


@shows("POST /v1/jobs", 201)
async def test_submission_posts_once_and_then_is_a_duplicate(client: Party, stage: Stage) -> None:
    body = await client.paid()
    first = await stage.http.post("/v1/jobs", json=body)
    assert first.status_code == 201
    assert set(first.json()) == {"job_id", "task_cid", "tx_hash"}
    again = await stage.http.post("/v1/jobs", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "DuplicateJob")
    assert again.headers["x-svc-retryable"] == "false"
    assert await stage.stored(f"containers/{body['job_id'][2:]}")


async def test_same_submission_sent_at_once_shares_one_relay(client: Party, stage: Stage) -> None:
    body = await client.paid()
    await stage.world.anvil.call("evm_setAutomine", False)
    answers: list[Any] = []

    async def send() -> None:
        answers.append(await stage.http.post("/v1/jobs", json=body))

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(send)
            with anyio.fail_after(60):
                signed = "select count(*) from relays where state = 'signed'"
                while await stage.fetchval(signed) == 0:  # noqa: ASYNC110 - the relayer's event is its own
                    await anyio.sleep(0.02)
            await stage.world.anvil.call("evm_mine")
    finally:
        await stage.world.anvil.call("evm_setAutomine", True)
    statuses = sorted(answer.status_code for answer in answers)
    hashes = {answer.json()["tx_hash"] for answer in answers if answer.status_code == 201}
    assert set(statuses) <= {201, 409}  # later requests find the job posted
    assert 201 in statuses
    assert len(hashes) == 1
    assert await stage.fetchval("select count(*) from relays where state = 'mined'") == 1


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"owner": "0x00"}, "owner"),
        ({"signature": "0x1234"}, "signature"),
        ({"signature": None}, "signature"),
        ({"job_id": "0x" + "11" * 32}, "job_id"),
        ({"rate_in": None}, "rate_in"),
        ({"rate_in": "-1"}, "rate_in"),
        ({"rate_in": "1_000"}, "rate_in"),
        ({"rate_in": "١٢"}, "rate_in"),
        ({"rate_in": True}, "rate_in"),
        ({"rate_in": 1.5}, "rate_in"),
        ({"units_in": str(2**32)}, "units_in"),
        ({"expires_at": 0}, "expires_at"),
        ({"auth_sig": "0x12"}, "auth_sig"),
    ],
)
@shows("POST /v1/jobs", 400, "invalid_request_error")
async def test_malformed_field_is_named(client: Party, stage: Stage, changed: Body, param: str) -> None:
    answer = await stage.http.post("/v1/jobs", json=client.order() | changed)
    assert (answer.status_code, answer.json()["error"]["param"], answer.json()["error"]["code"]) == (400, param, None)


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"expires_at": int(time.time()) - 1}, "expires_at"),
        ({"expires_at": int(time.time()) + 90_000}, "expires_at"),
        ({"sla_secs": 86_401}, "sla_secs"),
    ],
    ids=["expired", "too far", "sla too long"],
)
async def test_signed_terms_out_of_range_are_named(client: Party, stage: Stage, changed: Body, param: str) -> None:
    answer = await stage.http.post("/v1/jobs", json=client.order(**changed))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":1,"a":2}',
        b'{"rate_in": NaN}',
        b'{"rate_in": 1e400}',
        b"[" * 100_000,
        b'{"c":"\\u0000"}',
        b'{"c":"\\ud800"}',
        b"\xff",
    ],
    ids=["empty", "array", "cut", "twice", "nan", "huge", "deep", "nul", "surrogate", "not utf-8"],
)
async def test_body_that_parsers_disagree_about_is_refused(stage: Stage, raw: bytes) -> None:
    answer = await stage.http.post("/v1/jobs", content=raw)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@shows("POST /v1/jobs", 400, "cap_overflow")
@shows("POST /v1/jobs", 400, "invalid_order_signature")
async def test_order_that_overflows_or_is_anothers_is_refused(client: Party, stranger: Party, stage: Stage) -> None:
    huge = client.order(rate_in=2**128 - 1, units_in=2**32 - 1)
    assert (await stage.http.post("/v1/jobs", json=huge)).json()["error"]["code"] == "cap_overflow"
    order = client.order()
    forged = order | {"rate_in": "5"}
    theirs = order | {"signature": stranger.order()["signature"]}
    v0 = order | {"signature": order["signature"][:-2] + "00"}
    for wrong in (forged, theirs, v0):
        answer = await stage.http.post("/v1/jobs", json=wrong)
        assert answer.json()["error"]["code"] == "invalid_order_signature"


@shows("POST /v1/jobs", 400, "container_without_payment")
@shows("POST /v1/jobs", 400, "container_required")
@shows("POST /v1/jobs", 400, "container_ambiguous")
@shows("POST /v1/jobs", 400, "unknown_container")
async def test_payment_and_container_come_together_and_in_one_way(client: Party, stage: Stage) -> None:
    order, whole = client.order(), await client.paid()
    for body, code in (
        (order | {"container": "AAAA"}, "container_without_payment"),
        (order | {"container_cid": "bafy"}, "container_without_payment"),
        (client.pay(order, 5), "container_required"),
        (whole | {"container_cid": "bafy"}, "container_ambiguous"),
        ({k: v for k, v in whole.items() if k != "container"} | {"container_cid": "bafy"}, "unknown_container"),
    ):
        answer = await stage.http.post("/v1/jobs", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


@shows("POST /v1/jobs", 400, "invalid_payment_signature")
async def test_payment_by_another_wallet_is_refused(client: Party, stranger: Party, stage: Stage) -> None:
    body = await client.paid()
    forged = stranger.pay(body, int(body["amount"]))
    answer = await stage.http.post("/v1/jobs", json=forged)
    assert answer.json()["error"]["code"] == "invalid_payment_signature"


@shows("POST /v1/jobs", 409)
async def test_outdated_amount_is_answered_with_a_fresh_quote(client: Party, stage: Stage) -> None:
    body = await client.paid()
    cheap = client.pay(body, int(body["amount"]) - 1)
    answer = await stage.http.post("/v1/jobs", json=cheap)
    assert answer.status_code == 409
    assert answer.json()["quote"]["amount"] == body["amount"]
    assert answer.headers["x-svc-retryable"] == "false"


@shows("POST /v1/jobs", 400, "too_short")
@shows("POST /v1/jobs", 400, "bad_version")
@shows("POST /v1/jobs", 400, "commitment_mismatch")
async def test_container_that_is_not_the_committed_one_is_refused(client: Party, stage: Stage) -> None:
    body, container = await client.paid(), client.container()
    for wrong, code in (
        (container[:121], "too_short"),
        (b"", "too_short"),
        (b"\x02" + container[1:], "bad_version"),
        (container, "commitment_mismatch"),
    ):
        answer = await stage.http.post("/v1/jobs", json=body | {"container": base64_of(wrong)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


async def test_base64_with_two_spellings_is_refused(client: Party, stage: Stage) -> None:
    body = await client.paid()
    for wrong in ("AAAB=", "AAA", "AA==\n", "AB==", body["container"] + "\n"):
        answer = await stage.http.post("/v1/jobs", json=body | {"container": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "container")


@shows("POST /v1/jobs", 400, "payer_has_code")
@pytest.mark.parametrize("code", ["0x6001", "0xef0100" + "11" * 20], ids=["contract", "delegation"])
async def test_payer_with_code_is_refused(client: Party, stage: Stage, code: str) -> None:
    body = await client.paid()
    await stage.world.anvil.call("anvil_setCode", client.address, code)
    answer = await stage.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "payer_has_code")


async def test_model_and_window_that_the_chain_does_not_take_are_named(client: Party, stage: Stage) -> None:
    for changed, param in (({"model_id": 999}, "model_id"), ({"sla_secs": 7}, "sla_secs")):
        answer = await stage.http.post("/v1/jobs", json=await client.paid(**changed))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, None)
    assert f"one of {', '.join(map(str, sorted(SLA_WINDOWS_S)))} (" in error["message"]


@shows("POST /v1/jobs", 409, CONTRACT_ERROR)
async def test_refusal_by_the_chain_keeps_nothing_in_the_store(client: Party, stage: Stage) -> None:
    body = await client.paid(rate_in=10**24)  # more than the owner has
    answer = await stage.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "InsufficientBalance")
    assert not await stage.stored(f"containers/{body['job_id'][2:]}")


@shows("POST /v1/jobs", 413, "body_too_large")
async def test_body_over_20_mib_is_refused_declared_or_not(stage: Stage) -> None:
    limit = 20 * 1024 * 1024

    async def pieces() -> Any:
        for _ in range(21):
            yield b" " * (1 << 20)

    declared = await stage.http.post("/v1/jobs", content=b" " * (limit + 1))
    undeclared = await stage.http.post("/v1/jobs", content=pieces())
    for answer in (declared, undeclared):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


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


async def test_encoded_body_is_refused(client: Party, stage: Stage) -> None:
    raw = json.dumps(client.order()).encode()
    answer = await stage.http.post("/v1/jobs", content=raw, headers={"content-encoding": "gzip"})
    assert answer.status_code == 400
    plain = await stage.http.post("/v1/jobs", content=raw, headers={"content-encoding": "identity"})
    assert plain.status_code == 402
