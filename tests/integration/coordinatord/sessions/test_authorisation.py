"""Access to routes: every declared route with every kind of caller."""

import itertools
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
REFUSED = (
    None,
    "Basic dXNlcjpwYXNz",
    "Bearer ",
    "Bearer svc_sess_short",
    f"Bearer {UNKNOWN}",
    f"Bearer {UNKNOWN} ",
)
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


async def test_session_routes_refuse_and_public_routes_ignore(
    stage: Stage, operations: Operations, expired: str
) -> None:
    for authorization, (method, path, declared) in itertools.product((*REFUSED, expired), operations):
        answer = await _ask(stage.http, method, path, authorization)
        if _needs_session(declared):
            told = (answer.status_code, answer.json()["error"]["code"], answer.headers["x-svc-retryable"])
            assert told == (401, "invalid_session", "false"), f"{method} {path} {authorization}"
        else:
            assert answer.status_code != 401, f"{method} {path} {authorization}"


async def test_live_session_of_either_role_opens_every_session_route(
    stage: Stage, operations: Operations, provider: Party
) -> None:
    for role, scheme in (("client", "Bearer"), ("provider", "bearer")):
        await provider.sign_in(role)
        for method, path, _ in operations:
            answer = await _ask(stage.http, method, path, f"{scheme} {provider.token}")
            off = path in ("/key", "/release", "/handover") or path.startswith("/v1/webhooks")  # without their keys
            assert answer.status_code not in (401, 403, 500) or off, f"{method} {path}"
