import secrets
import time

import anyio
import attrs
import httpx
import pytest

from common.box import SecretKey
from common.container import Opener
from common.escrow_evidence import report_data
from common.key_derivation import escrow_key
from common.refusal import Refused
from common.scalars import base64_of
from coordinatord.run.application import compose_application
from coordinatord.storage.pins.containers import Containers
from tests.integration.coordinatord.scene.escrows import RESPONSE, claimed, code, opened, released, released_key
from tests.integration.coordinatord.scene.faults import node_error, status, unreachable, view
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage

RELEASE = "POST /release"
ANNOUNCED, RETIRED = bytes.fromhex("0a" * 32), bytes.fromhex("0b" * 32)
ESCROW = escrow_key(ANNOUNCED).public
PAYLOAD = b"sealed to the escrow"


@pytest.fixture
def stage_settings() -> dict[str, object]:
    return {"ESCROW_MODE": "static", "OPERATOR_KEY": f"{ANNOUNCED.hex()},0x{RETIRED.hex()}", "RELEASE_ORDINAL": 7}


@shows("GET /key", 200)
async def test_static_escrow_announces_its_first_key(stage: Stage) -> None:
    answer = (await stage.http.get("/key")).json()
    assert answer["escrow_public_key"] == ESCROW.raw.hex()
    assert answer["evidence"] == {
        "type": "static-coordinator-v1",
        "report_data": report_data(ESCROW).hex(),
        "debug": False,
        "release": 7,
    }
    assert abs(answer["issued_at"] - time.time()) < 60


@shows(RELEASE, 200)
@pytest.mark.parametrize("operator_key", [ANNOUNCED, RETIRED], ids=["announced", "retired"])
async def test_claiming_provider_gets_the_key_that_opens_the_payload(
    client: Party, provider: Party, stage: Stage, operator_key: bytes
) -> None:
    container = client.container(PAYLOAD, escrow_key(operator_key).public)
    job = await claimed(client, provider, container)
    answer = await released(stage.http, provider, job, container)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert opened(answer, container) == PAYLOAD


async def test_reposted_container_does_not_open_with_released_key(
    client: Party, stranger: Party, provider: Party, stage: Stage
) -> None:
    """Containers are public. The stranger's friend has a valid claim, and the escrow can open the wrap."""
    container = client.container(PAYLOAD, ESCROW)
    await client.post(container=container)
    stolen = await claimed(stranger, provider, container)
    answer = await released(stage.http, provider, stolen, container)
    key = released_key(answer)
    openers = [Opener.with_data_key(key)]
    # The released key is not the seed, from which the owner's key could be derived.
    for who in (client, stranger):
        openers.append(Opener.with_seed(key, 31337, who.registry, who.wallet.address))
    for opener in openers:
        with pytest.raises(Refused) as refused:
            _ = opener.pull(container) + opener.finish()
        assert refused.value.code == "undecryptable"


@shows(RELEASE, 404, "no_claim")
@shows(RELEASE, 409, "not_claimed")
async def test_nothing_is_released_before_the_claim_nor_after_the_end(
    client: Party, provider: Party, stage: Stage
) -> None:
    container = client.container(PAYLOAD, ESCROW)
    unknown = provider.release("0x" + secrets.token_hex(32), container, RESPONSE.public)
    assert code(await stage.http.post("/release", json=unknown)) == (404, "no_claim")
    job = (await client.post(container=container))["job_id"]
    request = provider.release(job, container, RESPONSE.public)
    assert code(await stage.http.post("/release", json=request)) == (409, "not_claimed")
    await provider.run(provider.claim(job))
    assert (await stage.http.post("/release", json=request)).status_code == 200
    await provider.run(provider.fail(job))
    assert code(await stage.http.post("/release", json=request)) == (409, "not_claimed")


@shows(RELEASE, 400, "wrap_mismatch")
@shows(RELEASE, 403, "wrong_wallet")
@shows(RELEASE, 400, "unseal_failed")
async def test_release_checks_container_wallet_and_key(
    client: Party, stranger: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    container, other = client.container(PAYLOAD, ESCROW), client.container(PAYLOAD, ESCROW)
    sealed_elsewhere = client.container(PAYLOAD, SecretKey.generate().public)
    job = await claimed(client, provider, container)
    elsewhere = await claimed(client, provider, sealed_elsewhere)
    for who, target, shown, expected in (
        (provider, job, other, (400, "wrap_mismatch")),
        (rival, job, container, (403, "wrong_wallet")),
        (stranger, job, container, (403, "wrong_wallet")),
        (provider, elsewhere, sealed_elsewhere, (400, "unseal_failed")),
    ):
        answer = await released(stage.http, who, target, shown)
        assert code(answer) == expected
        assert answer.headers["x-svc-retryable"] == "false"


@shows(RELEASE, 400, "stale_issued_at")
@shows(RELEASE, 400, "bad_container")
@shows(RELEASE, 400, "invalid_request_error")
@shows(RELEASE, 403, "wrong_wallet")
async def test_release_refuses_invalid_requests_without_the_chain(client: Party, provider: Party, stage: Stage) -> None:
    container = client.container(PAYLOAD, ESCROW)
    request = provider.release("0x" + "11" * 32, container, RESPONSE.public)
    stale = provider.release("0x" + "11" * 32, container, RESPONSE.public, int(time.time()) - 601)
    low_order = hex((1 << 255) - 19)[2:]
    cases: list[tuple[Body, tuple[int, str | None], str | None]] = [
        (stale, (400, "stale_issued_at"), None),
        (request | {"seed_wrap": base64_of(bytes(79))}, (400, "bad_container"), "seed_wrap"),
        (request | {"seed_wrap": "AB=="}, (400, "bad_container"), "seed_wrap"),
        (request | {"ct_hash": "0x11"}, (400, "bad_container"), "ct_hash"),
        (request | {"job_id": "11" * 32}, (400, None), "job_id"),
        (request | {"issued_at": "01"}, (400, None), "issued_at"),
        (request | {"response_pubkey": "0x" + RESPONSE.public.raw.hex()}, (400, None), "response_pubkey"),
        (request | {"response_pubkey": bytes(32).hex()}, (400, None), "response_pubkey"),
        (request | {"response_pubkey": bytes.fromhex(low_order)[::-1].hex()}, (400, None), "response_pubkey"),
        (request | {"signature": "0x" + "00" * 65}, (403, "wrong_wallet"), None),
        (request | {"signature": request["signature"] + "00"}, (403, "wrong_wallet"), None),
        (request | {"signature": 7}, (403, "wrong_wallet"), None),
    ]
    with stage.node.answering(unreachable):
        for body, expected, param in cases:
            answer = await stage.http.post("/release", json=body)
            assert (code(answer), answer.json()["error"]["param"]) == (expected, param), body


@shows(RELEASE, 503, "chain_unreachable")
@shows(RELEASE, 503, "rate_limited")
@shows(RELEASE, 503, "job_read")
@shows(RELEASE, 503, "provider_id_read")
async def test_trouble_of_the_node_is_retryable(client: Party, provider: Party, stage: Stage) -> None:
    container = client.container(PAYLOAD, ESCROW)
    job = await claimed(client, provider, container)
    request = provider.release(job, container, RESPONSE.public)
    for rule, expected in (
        (unreachable, "chain_unreachable"),
        (status(429), "rate_limited"),
        (node_error(view("job(bytes32)")), "job_read"),
        (node_error(view("providerIdOf(address)")), "provider_id_read"),
    ):
        with stage.node.answering(rule):
            answer = await stage.http.post("/release", json=request)
        kind = answer.json()["error"]["type"]
        assert (answer.status_code, answer.headers["x-svc-retryable"]) == (503, "true")
        assert answer.json()["error"]["code"] == (None if kind == "chain_unreachable" else expected)
    assert (await stage.http.post("/release", json=request)).status_code == 200


async def test_release_of_a_shallow_claim_is_retryable(client: Party, provider: Party, stage: Stage) -> None:
    container = client.container(PAYLOAD, ESCROW)
    job = await claimed(client, provider, container)
    ground = attrs.evolve(stage.ground, config=attrs.evolve(stage.ground.config, confirmations=2))
    containers = Containers(ground.database, ground.pins, ground.config.file_retention_seconds)
    careful = compose_application(ground, stage.relaying, containers, stage.escrow, stage.stopping)
    request = provider.release(job, container, RESPONSE.public)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(careful), base_url="http://careful") as http:
        for _ in range(2):
            answer = await http.post("/release", json=request)
            assert (code(answer), answer.headers["x-svc-retryable"]) == ((503, "job_read"), "true")
            await stage.ground.rpc.call("evm_mine")
        answer = await http.post("/release", json=request)
    assert opened(answer, container) == PAYLOAD


@shows("POST /handover", 403, "escrow_handover_disabled")
async def test_static_escrow_hands_nothing_over(stage: Stage) -> None:
    assert code(await stage.http.post("/handover", json={})) == (403, "escrow_handover_disabled")


async def test_flood_of_releases_causes_few_node_requests(
    client: Party, stranger: Party, provider: Party, stage: Stage
) -> None:
    containers = [client.container(PAYLOAD, ESCROW) for _ in range(3)]
    jobs = [await claimed(client, provider, container) for container in containers]
    answers: dict[str, list[httpx.Response]] = {"released": [], "refused": [], "normal": []}
    asked = 0

    def count(request: httpx.Request) -> None:
        nonlocal asked
        asked += b"eth_call" in request.content

    async def ask(kind: str, path: str, body: Body | None) -> None:
        method = "GET" if body is None else "POST"
        answers[kind].append(await stage.http.request(method, path, json=body))

    with stage.node.answering(count):
        async with anyio.create_task_group() as tasks:
            for n in range(300):
                job, container = jobs[n % 3], containers[n % 3]
                tasks.start_soon(ask, "released", "/release", provider.release(job, container, RESPONSE.public))
                unknown = "0x" + secrets.token_hex(32)
                tasks.start_soon(ask, "refused", "/release", stranger.release(unknown, container, RESPONSE.public))
                tasks.start_soon(ask, "refused", "/release", stranger.release(job, container, RESPONSE.public))
                if n % 10 == 0:
                    tasks.start_soon(ask, "normal", f"/v1/jobs/{job}", None)
                    tasks.start_soon(ask, "normal", "/key", None)
            await client.post()
    assert {answer.status_code for answer in answers["released"]} == {200}
    assert {answer.status_code for answer in answers["refused"]} == {403, 404}
    assert {answer.status_code for answer in answers["normal"]} == {200}
    assert asked < 100, "reads of the chain that wait for one another are one request"
