"""Access to routes: every declared route with every kind of caller."""

import re
from typing import Any

import httpx
import pytest

from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage

pytestmark = pytest.mark.anyio

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


@pytest.mark.parametrize(
    ("who", "status", "code"),
    [
        ("nobody", 401, "invalid_session"),
        ("expired", 401, "invalid_session"),
        ("client", 403, "not_registered"),
        ("provider", 200, None),
    ],
)
async def test_poll_with_free_is_for_providers(
    *, stage: Stage, client: Party, provider: Party, who: str, status: int, code: str | None
) -> None:
    await client.sign_in()
    tokens = {"nobody": "", "client": client.token, "provider": provider.token, "expired": client.token}
    if who == "expired":
        await stage.execute("update sessions set expires_at = clock_timestamp() - interval '1 second'")
    answer = await _ask(stage.http, "get", "/evm/jobs?free=1&state=Open&model=1", f"Bearer {tokens[who]}")
    assert answer.status_code == status
    assert answer.json().get("error", {}).get("code") == code


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
