import time
from typing import Any

import httpx
import pytest

from common.box import SecretKey
from common.domains import Domains
from common.escrow_evidence import mock_measurement, report_data
from common.messages.escrow import HandoverAuth
from common.scalars import hex_of
from common.secp256k1 import Wallet
from devnet.world import World
from tests.integration.coordinatord.scene.escrows import MOCK, OPERATOR_KEY, RELEASE, allow, code, custody_of
from tests.integration.coordinatord.scene.faults import node_error, status, unreachable, view
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, staged

HANDOVER = "POST /handover"
CHANNEL = SecretKey.generate()
OPERATOR = Wallet(bytes.fromhex(OPERATOR_KEY))


@pytest.fixture
def stage_settings() -> dict[str, object]:
    return MOCK


def request(stage: Stage, operator: Wallet = OPERATOR, issued_at: int | None = None, **evidence: object) -> Any:
    at = issued_at if issued_at is not None else int(time.time())
    domains: Domains = stage.ground.domains
    signature = operator.sign(domains.escrow.digest(HandoverAuth(CHANNEL.public.raw, at)))
    return {
        "evidence": {
            "type": "mock-coordinator-v1",
            "report_data": report_data(CHANNEL.public).hex(),
            "debug": False,
            "release": RELEASE,
            "measurement": mock_measurement(RELEASE).hex(),
            "tcb": "mock",
            "quote": "",
            **evidence,
        },
        "channel_pubkey": CHANNEL.public.raw.hex(),
        "issued_at": at,
        "operator_signature": hex_of(signature),
    }


async def ask(stage: Stage, body: object) -> httpx.Response:
    return await stage.http.post("/handover", json=body)


@shows(HANDOVER, 200)
async def test_listed_instance_gets_keys_sealed_to_its_channel(stage: Stage, world: World) -> None:
    await allow(world)
    answer = await ask(stage, request(stage))
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert (answer.json()["key_count"], answer.json()["holder_release"]) == (1, RELEASE)
    secret = custody_of(stage).held_generations()[0].key.copy_secret()
    assert secret.hex() not in answer.text


@shows(HANDOVER, 400, "stale_issued_at")
@shows(HANDOVER, 400, "bad_binding")
@shows(HANDOVER, 400, "invalid_request_error")
@shows(HANDOVER, 403, "debug_evidence")
@shows(HANDOVER, 403, "stale_release")
@shows(HANDOVER, 403, "bad_operator_signature")
@shows(HANDOVER, 403, "operator_not_authorized")
async def test_handover_refuses_invalid_requests_without_the_chain(stage: Stage) -> None:
    good = request(stage)
    cases: list[tuple[Any, tuple[int, str | None]]] = [
        (request(stage, issued_at=int(time.time()) - 601), (400, "stale_issued_at")),
        (request(stage, report_data="00" * 32), (400, "bad_binding")),
        (good | {"channel_pubkey": SecretKey.generate().public.raw.hex()}, (400, "bad_binding")),
        (request(stage, debug=True), (403, "debug_evidence")),
        (request(stage, release=RELEASE - 1), (403, "stale_release")),
        (good | {"operator_signature": "0x00"}, (403, "bad_operator_signature")),
        (good | {"operator_signature": "0x" + "00" * 65}, (403, "bad_operator_signature")),
        (request(stage, Wallet(bytes.fromhex("0b" * 32))), (403, "operator_not_authorized")),
        (good | {"issued_at": good["issued_at"] - 1}, (403, "operator_not_authorized")),
        (good | {"channel_pubkey": bytes(32).hex()}, (400, None)),
        (request(stage, type="static-coordinator-v1"), (400, None)),
        (request(stage, debug="false"), (400, None)),
        (request(stage, release=65536), (400, None)),
        ({}, (400, None)),
    ]
    with stage.node.answering(unreachable):
        for body, expected in cases:
            answer = await ask(stage, body)
            assert code(answer) == expected, body
            assert answer.headers["x-svc-retryable"] == "false"


@shows(HANDOVER, 403, "not_allowlisted")
@shows(HANDOVER, 403, "tombstoned")
async def test_allowlist_of_the_chain_decides_at_once(stage: Stage, world: World) -> None:
    assert code(await ask(stage, request(stage))) == (403, "not_allowlisted")
    await allow(world)
    assert (await ask(stage, request(stage))).status_code == 200
    assert (await ask(stage, request(stage, release=RELEASE + 1))).status_code == 200
    await allow(world, status=2)
    assert code(await ask(stage, request(stage))) == (403, "tombstoned")


@shows(HANDOVER, 503, "chain_unreachable")
@shows(HANDOVER, 503, "rate_limited")
@shows(HANDOVER, 503, "allowlist_status_read")
async def test_allowlist_that_cannot_be_read_is_retryable(stage: Stage) -> None:
    for rule, expected in (
        (unreachable, None),
        (status(429), "rate_limited"),
        (node_error(view("allowlistStatus(bytes32)")), "allowlist_status_read"),
    ):
        with stage.node.answering(rule):
            answer = await ask(stage, request(stage))
        assert (code(answer), answer.headers["x-svc-retryable"]) == ((503, expected), "true")


@shows(HANDOVER, 503, "escrow_key_unminted")
@shows("GET /key", 503, "escrow_key_unminted")
async def test_joining_instance_says_that_it_waits_for_its_keys(
    world: World, database_url: str, seen: list[Seen]
) -> None:
    config = configured(world, database_url, **MOCK, PEER_URL="http://127.0.0.1:1")
    await allow(world)
    async with staged(world, config, seen) as stage:
        for answer in (await stage.http.get("/key"), await ask(stage, request(stage))):
            assert code(answer) == (503, "escrow_key_unminted")
            assert answer.json()["error"]["type"] == "not_ready"
            assert answer.headers["x-svc-retryable"] == "true"


@shows("GET /key", 403, "escrow_unavailable")
@shows("POST /release", 403, "escrow_unavailable")
@shows("POST /release", 413, "body_too_large")
@shows("POST /handover", 403, "escrow_unavailable")
@shows("POST /handover", 413, "body_too_large")
@pytest.mark.parametrize("stage_settings", [{}], ids=["off"])
async def test_escrow_routes_answer_that_there_is_none(stage: Stage) -> None:
    for path, size in (("/release", 2048), ("/handover", 4096)):
        answer = await stage.http.post(path, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "escrow_unavailable")
        assert answer.headers["x-svc-retryable"] == "false"
        assert (await stage.http.post(path, content=b" " * (size + 1))).status_code == 413
    assert (await stage.http.get("/key")).json()["error"]["code"] == "escrow_unavailable"
