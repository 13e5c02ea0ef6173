import anyio
import pytest

from common.messages.sessions import SvcSession
from common.scalars import hex_of
from coordinatord.api.sessions.sessions import hash_token
from tests.integration.coordinatord.scene.faults import unreachable
from tests.integration.coordinatord.scene.node_faults import node_error, view
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage

pytestmark = pytest.mark.anyio


@shows("GET /auth/nonce", 200)
@shows("POST /auth/session", 200)
async def test_signed_nonce_opens_a_session_once(stage: Stage, client: Party) -> None:
    body = await client.session_body()
    first = await stage.http.post("/auth/session", json=body)
    again = await stage.http.post("/auth/session", json=body)
    assert first.status_code == 200
    assert first.json()["token"].startswith("svc_sess_")
    assert "provider_id" not in first.json()
    assert (again.status_code, again.json()["error"]["param"]) == (400, "nonce")


async def test_provider_session_is_bound_to_its_registry_id(stage: Stage, provider: Party) -> None:
    body = await provider.session_body(role="provider")
    opened = (await stage.http.post("/auth/session", json=body)).json()
    expected = stage.world.market.provider_ids
    assert opened["provider_id"] == {k.lower(): v for k, v in expected.items()}[provider.address]


async def test_of_many_requests_with_one_nonce_one_gets_a_session(stage: Stage, client: Party) -> None:
    body = await client.session_body()
    statuses: list[int] = []

    async def sign_in() -> None:
        statuses.append((await stage.http.post("/auth/session", json=body)).status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(sign_in)
    assert sorted(statuses) == [200] + [400] * 11


@shows("GET /auth/nonce", 400, "invalid_request_error")
@pytest.mark.parametrize("query", ["", "address=", "address=0x12", "address=0x" + "zz" * 20])
async def test_nonce_needs_an_address(stage: Stage, query: str) -> None:
    answer = await stage.http.get(f"/auth/nonce?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "address")


@shows("POST /auth/session", 400, "invalid_request_error")
@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"nonce": "0" * 32}, "nonce"),
        ({"nonce": "not a nonce"}, "nonce"),
        ({"nonce": 5}, "nonce"),
        ({"address": "0x12"}, "address"),
        ({"signature": None}, "signature"),
        ({"role": "admin"}, "role"),
    ],
)
async def test_malformed_handshake_names_the_field(
    stage: Stage, client: Party, changed: dict[str, object], param: str
) -> None:
    answer = await stage.http.post("/auth/session", json=await client.session_body(**changed))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@shows("POST /auth/session", 401, "invalid_signature")
async def test_signature_that_is_not_the_addresss_is_401(stage: Stage, client: Party, stranger: Party) -> None:
    theirs = await stranger.session_body()
    body = await client.session_body()
    digest = client.domains.session.digest(SvcSession(client.wallet.address, body["nonce"]))
    for wrong in (
        {"signature": "0x12"},
        {"signature": "hello"},
        {"signature": hex_of(client.wallet.sign(digest))[:-2] + "00"},  # v 0
        {"signature": hex_of(stranger.wallet.sign(digest))},
        {"nonce": theirs["nonce"]},  # issued to another address
        {"address": stranger.address},
    ):
        answer = await stage.http.post("/auth/session", json=body | wrong)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_signature"), wrong
    assert (await stage.http.post("/auth/session", json=body)).status_code == 200  # the nonce is still unused


@shows("POST /auth/session", 403, "not_registered")
async def test_provider_role_needs_a_registered_wallet(stage: Stage, client: Party) -> None:
    answer = await stage.http.post("/auth/session", json=await client.session_body(role="provider"))
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "authentication_error")


@shows("POST /auth/session", 503, "chain_unreachable")
@shows("POST /auth/session", 503, "rate_limited")
@shows("POST /auth/session", 503, "provider_id_read")
async def test_trouble_with_the_chain_leaves_the_nonce_for_the_retry(stage: Stage, provider: Party) -> None:
    body = await provider.session_body(role="provider")
    with stage.node.answering(unreachable):
        assert (await stage.http.post("/auth/session", json=body)).json()["error"]["type"] == "chain_unreachable"
    for number, code in ((-32603, "provider_id_read"), (-32005, "rate_limited")):
        with stage.node.answering(node_error(view("providerIdOf(address)"), number)):
            answer = await stage.http.post("/auth/session", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
        assert answer.headers["x-svc-retryable"] == "true"
    assert (await stage.http.post("/auth/session", json=body)).status_code == 200


async def test_seventeenth_nonce_of_one_caller_drops_its_oldest(stage: Stage, client: Party) -> None:
    bodies = [await client.session_body() for _ in range(17)]
    assert (await stage.http.post("/auth/session", json=bodies[0])).status_code == 400
    assert (await stage.http.post("/auth/session", json=bodies[1])).status_code == 200
    assert (await stage.http.post("/auth/session", json=bodies[16])).status_code == 200


async def test_strangers_requests_evict_no_nonce_of_the_victim(stage: Stage, client: Party) -> None:
    body = await client.session_body()
    await stage.execute("update nonces set caller = 'the victim'")
    for _ in range(40):
        await stage.http.get("/auth/nonce", params={"address": client.address})
    assert await stage.fetchval("select count(*) from nonces") == 16
    assert (await stage.http.post("/auth/session", json=body)).status_code == 200


async def test_thirty_third_session_evicts_the_one_closest_to_expiry(stage: Stage, client: Party) -> None:
    tokens = []
    for _ in range(33):
        await client.sign_in()
        tokens.append(client.token)
    assert await stage.fetchval("select count(*) from sessions") == 32
    assert await stage.fetchval("select count(*) from sessions where token_hash = $1", hash_token(tokens[0])) == 0
    assert (await client.run({"op": "claim"})).status_code == 400  # the newest is live: past the session check


async def test_expired_session_and_nonce_are_rejected_and_swept(stage: Stage, client: Party) -> None:
    await client.sign_in()
    body = await client.session_body()
    for table in ("nonces", "sessions"):
        past = f"update {table} set expires_at = clock_timestamp() - interval '1 second'"  # noqa: S608 - two constants
        await stage.execute(past)
    assert (await stage.http.post("/auth/session", json=body)).status_code == 400
    assert (await client.run({"op": "claim"})).json()["error"]["code"] == "invalid_session"
    await stage.sweep()
    assert await stage.fetchval("select (select count(*) from nonces) + (select count(*) from sessions)") == 0


async def test_token_is_stored_as_its_hash_alone(stage: Stage, client: Party) -> None:
    await client.sign_in()
    row = str(await stage.fetchval("select row(sessions.*)::text from sessions"))
    assert hash_token(client.token).hex() in row
    assert client.token not in row
