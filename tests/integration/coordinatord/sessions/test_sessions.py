"""Sessions: the handshake, the routes that need one, and caches while others revoke them."""

import re
from typing import Any

import anyio
import attrs
import httpx
import pytest

from common.messages.sessions import SvcSession
from common.scalars import hex_of
from coordinatord.api.sessions.sessions import SessionCache, hash_token
from coordinatord.api.sessions.sessions_sql import MAX_SESSIONS, add_nonce, delete_expired_sessions, open_session
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import SessionRow
from coordinatord.storage.database.connections import Connection, Database
from tests.integration.coordinatord.scene.faults import node_error, unreachable, view
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows, shows_each
from tests.integration.coordinatord.scene.specification import SPECIFICATION
from tests.integration.coordinatord.scene.stage import Stage


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


# Path prefixes from the specification.
NEEDS_SESSION = re.compile(
    r"(post|get) /v1/files(/.*)?|(post|get) /v1/batches(/.*)?|post /evm/ops|put /evm/asks"
    r"|(post|get|delete) /v1/webhooks(/.*)?|(post|get) /v1/tabs/.*"
)
UNKNOWN = "svc_sess_" + "A" * 43
EXAMPLES = ("0x" + "12" * 32, "1", "file-unknown", "batch_unknown")
REFUSED = {
    "nothing": None,
    "another scheme": "Basic dXNlcjpwYXNz",
    "an empty token": "Bearer ",
    "no token of ours": "Bearer svc_sess_short",
    "an unknown token": f"Bearer {UNKNOWN}",
    "a token with a blank after it": f"Bearer {UNKNOWN} ",
    "an expired token": "expired",
}
Operations = list[tuple[str, str, dict[str, Any]]]


@pytest.fixture
async def operations(stage: Stage) -> Operations:
    """Return (method, path with examples in it, declaration) of every route."""
    document = (await stage.http.get("/openapi.json")).json()
    return [
        (method, _filled(path, declared), declared)
        for path, methods in document["paths"].items()
        for method, declared in methods.items()
    ]


@pytest.fixture
async def expired(stage: Stage, client: Party) -> str:
    await client.sign_in()
    await stage.execute("update sessions set expires_at = clock_timestamp() - interval '1 second'")
    return f"Bearer {client.token}"


def _filled(path: str, declared: dict[str, Any]) -> str:
    for parameter in declared["parameters"]:
        if parameter["in"] == "path":
            pattern = parameter["schema"].get("pattern", ".+")
            example = next(example for example in EXAMPLES if re.fullmatch(pattern, example))
            path = path.replace(f"{{{parameter['name']}}}", example)
    return path


async def _ask(http: httpx.AsyncClient, method: str, path: str, authorization: str | None) -> httpx.Response:
    headers = {} if authorization is None else {"authorization": authorization}
    if path == "/evm/events":  # a stream, which never ends
        path += "?after=none"
    body = {"json": {}} if method in ("post", "put") else {}
    return await http.request(method.upper(), path, headers=headers, **body)


def _needs_session(declared: dict[str, Any]) -> bool:
    return bool(declared.get("security") == [{"session": []}])


async def test_routes_that_need_a_session_are_the_specifications(stage: Stage) -> None:
    document = (await stage.http.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        for method, declared in methods.items():
            assert _needs_session(declared) == bool(NEEDS_SESSION.fullmatch(f"{method} {path}")), f"{method} {path}"


@shows_each(
    (route, 401, "invalid_session")
    for route, answers in SPECIFICATION.items()
    if (401, "invalid_session") in answers and route != "GET /evm/jobs"  # which needs a session for polls alone
)
@pytest.mark.parametrize("authorization", REFUSED.values(), ids=REFUSED.keys())
async def test_session_routes_refuse_and_public_routes_ignore(
    stage: Stage, operations: Operations, expired: str, authorization: str | None
) -> None:
    given = expired if authorization == "expired" else authorization
    for method, path, declared in operations:
        answer = await _ask(stage.http, method, path, given)
        if _needs_session(declared):
            told = (answer.status_code, answer.json()["error"]["code"], answer.headers["x-svc-retryable"])
            assert told == (401, "invalid_session", "false"), f"{method} {path}"
        else:
            assert answer.status_code != 401, f"{method} {path}"


@pytest.mark.parametrize(("role", "scheme"), [("client", "Bearer"), ("provider", "bearer")])
async def test_live_session_of_either_role_opens_every_session_route(
    stage: Stage, operations: Operations, provider: Party, role: str, scheme: str
) -> None:
    await provider.sign_in(role)
    for method, path, _ in operations:
        answer = await _ask(stage.http, method, path, f"{scheme} {provider.token}")
        off = path in ("/key", "/release", "/handover") or path.startswith("/v1/webhooks")  # without their keys
        assert answer.status_code not in (401, 403, 500) or off, f"{method} {path}"


ADDRESS = b"\x01" * 20


@attrs.define
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


async def opened(database: Database, number: int, address: bytes = ADDRESS) -> bytes:
    token_hash = number.to_bytes(32, "big")

    async def body(connection: Connection) -> None:
        await add_nonce(connection, str(number), address, "anybody")
        assert await open_session(connection, str(number), token_hash, address, None) is not None

    await database.transact(body)
    return token_hash


async def test_another_wallets_signature_gives_no_authority(
    stage: Stage, client: Party, stranger: Party, provider: Party
) -> None:
    job = (await client.post())["job_id"]
    cancelled = await stage.http.post(f"/v1/jobs/{job}/cancel", json=stranger.cancel(job))
    assert (cancelled.status_code, cancelled.json()["error"]["code"]) == (409, "NotTheOwner")
    # A provider's session cannot submit an op that another wallet signed.
    op = await stage.http.post("/evm/ops", json=stranger.claim(job), headers=provider.authorization)
    assert (op.status_code, op.json()["error"]["type"]) == (403, "invalid_op_signature")
    asks = stranger.asks(1, (1, 3600, 1, 1))
    published = await stage.http.put("/evm/asks", json=asks, headers=provider.authorization)
    assert (published.status_code, published.json()["error"]["code"]) == (403, "not_registered")
    order = client.order()
    forged = stranger.order()
    quoted = await stage.http.post("/v1/jobs", json={**order, "signature": forged["signature"]})
    assert (quoted.status_code, quoted.json()["error"]["code"]) == (400, "invalid_order_signature")


async def test_session_evicted_elsewhere_is_soon_rejected(database: Database) -> None:
    clock = Clock()
    here = SessionCache(database, clock)
    first, other = await opened(database, 1), await opened(database, 99, b"\x02" * 20)
    assert await here.find(first) == SessionRow(ADDRESS, None)
    for number in range(2, MAX_SESSIONS + 2):
        await opened(database, number)
    clock.now += 0.06
    assert await here.find(first) is None
    assert await here.find(other) == SessionRow(b"\x02" * 20, None)


async def test_session_that_is_evicted_here_is_not_found_any_more(database: Database) -> None:
    here = SessionCache(database, Clock())
    first = await opened(database, 1)
    assert await here.find(first) is not None
    assert await here.find(first) is not None
    for number in range(2, MAX_SESSIONS + 2):
        await opened(database, number)
    await here.refresh_revocations()
    assert await here.find(first) is None


async def test_transaction_made_again_finds_the_session_that_it_opened(database: Database) -> None:
    """The commit succeeded while the connection broke. The retry finds the nonce used."""
    token_hash = await opened(database, 1)

    async def again(connection: Connection) -> list[int | None]:
        return [await open_session(connection, "1", token, ADDRESS, None) for token in (token_hash, b"\x09" * 32)]

    ends, other = await database.transact(again)
    stored = await database.pool.fetchval("select floor(extract(epoch from expires_at))::bigint from sessions")
    assert (ends, other) == (stored, None)


@pytest.mark.long
async def test_session_is_returned_despite_a_database_failure(database: Database) -> None:
    here = SessionCache(database, Clock())
    await database.close_prepared()
    with pytest.raises(Retryable):
        await here.find(b"\x01" * 32)
    await here.refresh_revocations()


async def test_session_is_not_found_past_its_end(database: Database) -> None:
    clock = Clock()
    here = SessionCache(database, clock)
    token_hash = await opened(database, 1)
    await database.pool.execute("update sessions set expires_at = clock_timestamp() + interval '0.4 seconds'")
    assert await here.find(token_hash) is not None
    await database.pool.execute("select pg_sleep(0.5)")
    assert await here.find(token_hash) is not None  # no time has passed for this process
    clock.now += 0.5
    assert await here.find(token_hash) is None
    await database.transact(delete_expired_sessions)
    assert await here.find(token_hash) is None
