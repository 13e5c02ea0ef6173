"""A coordinator that lies in one field of one response: an honest coordinator behind a transport that changes the
field.

Fields are enumerated from `/openapi.json`, so new ones are included automatically.
"""

import json
import re
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import httpx

from common.box import SecretKey
from tests.support.fakes.streamed import streamed

ATTACKER: Final = "66" * 20
ATTACKERS_KEY: Final = SecretKey(b"\x66" * 32).public.raw.hex()
_HEX: Final = re.compile(r"(0x)?([0-9a-f]{40}|[0-9a-f]{64})", re.ASCII)
_NOBODY_TRUSTED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # plain HTTP, so load no certificates
_SUCCESSES: Final = ("200", "201", "402")

Json = Any
Change = Callable[[Json], None]


@attrs.frozen
class Field:
    """`route` looks like `GET /evm/chain 200`, and `path` like `candidates[].box_key`."""

    route: str
    path: str

    def __str__(self) -> str:
        return f"{self.route} {self.path}"


def fields(document: dict[str, Any]) -> Iterator[Field]:
    """Return the leaf fields of all successful responses."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status in _SUCCESSES:
                content = operation["responses"].get(status, {}).get("content", {})
                schema = content.get("application/json", {}).get("schema")
                if schema is not None:
                    route = f"{method.upper()} {path} {status}"
                    yield from (Field(route, leaf) for leaf in dict.fromkeys(_leaves(schema, document, "")))


def _leaves(schema: dict[str, Any], document: dict[str, Any], at: str) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name != "Error":
            yield from _leaves(document["components"]["schemas"][name], document, at)
        return
    variants = schema.get("anyOf", [])
    for variant in variants:
        yield from _leaves(variant, document, at)
    for name, inner in schema.get("properties", {}).items():
        yield from _leaves(inner, document, f"{at}.{name}" if at else name)
    if "items" in schema:
        yield from _leaves(schema["items"], document, f"{at}[]")
    if not variants and not schema.get("properties") and "items" not in schema and at and schema.get("type") != "null":
        yield at


def lies(value: Json) -> list[Json]:
    """Return false values for this field: an attacker's, larger, smaller."""
    return [lie for lie in _others(value) if lie != value]


def _others(value: Json) -> list[Json]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 1000 + 7, 0]
    if isinstance(value, str) and value.isdigit():
        return [str(lie) for lie in _others(int(value))]
    if isinstance(value, str):
        found = _HEX.fullmatch(value)
        if found is None:
            return ["mock-coordinator-v1" if value.endswith("-v1") else "a lie"]
        return [(found[1] or "") + (ATTACKER if len(found[2]) == 40 else ATTACKERS_KEY)]
    if isinstance(value, dict):
        return [{}, {"type": "object", "required": ["lie"]}]
    return ["7", "0x" + ATTACKERS_KEY]


def told(bodies: list[Json], path: str) -> list[Json]:
    """Return the values of a field in these responses. Empty if the field is missing."""
    return [holder[name] for body in bodies for holder, name in _places(body, path.split("."))]


def lying(path: str, pick: Callable[[list[Json]], Json]) -> Change:
    """Change one field of a body, at any position in a list."""

    def change(body: Json) -> None:
        for holder, name in _places(body, path.split(".")):
            holder[name] = pick(lies(holder[name]))

    return change


def _places(body: Json, parts: list[str]) -> Iterator[tuple[Json, str | int]]:
    name, rest = parts[0], parts[1:]
    plain = name.removesuffix("[]")
    if not isinstance(body, dict) or plain not in body:
        return
    if name == plain:
        if rest:
            yield from _places(body[plain], rest)
        else:
            yield body, plain
        return
    for at, each in enumerate(body[plain]):
        if rest:
            yield from _places(each, rest)
        else:
            yield body[plain], at


@attrs.define
class Liar(httpx.AsyncBaseTransport):
    """A transport between a client and an honest coordinator. `changes` is by route. Submissions are recorded and never
    passed on."""

    templates: list[str]
    changes: dict[str, Change] = attrs.field(factory=dict)
    heard: dict[str, list[Json]] = attrs.field(factory=dict)
    submissions: list[Json] = attrs.field(factory=list)
    answers_to_submissions: list[Callable[[Json], tuple[int, Json]]] = attrs.field(factory=list)
    honest: httpx.AsyncHTTPTransport = attrs.field(factory=lambda: httpx.AsyncHTTPTransport(verify=_NOBODY_TRUSTED))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        if request.url.path == "/v1/jobs" and b'"auth_sig"' in content:
            return self._submitted(json.loads(content))
        response = await self.honest.handle_async_request(request)
        raw = await response.aread()
        headers = [(name, value) for name, value in response.headers.multi_items() if name != "content-length"]
        route = self._route(request, response.status_code)
        if response.headers.get("content-type") == "application/json":
            body = json.loads(raw)
            self.heard.setdefault(route, []).append(json.loads(raw))
            self.changes.get(route, _nothing)(body)
            raw = json.dumps(body).encode()
        return streamed(httpx.Response(response.status_code, headers=headers, content=raw, request=request))

    async def aclose(self) -> None:
        await self.honest.aclose()

    def _submitted(self, body: Json) -> httpx.Response:
        self.submissions.append(body)
        route, status = "POST /v1/jobs 201", 201
        answer: Json = {"job_id": body["job_id"], "task_cid": "bafytask", "tx_hash": "0x" + "cc" * 32}
        if self.answers_to_submissions:
            status, answer = self.answers_to_submissions.pop(0)(body)
        else:
            self.heard.setdefault(route, []).append(dict(answer))
            self.changes.get(route, _nothing)(answer)
        headers = {"x-svc-retryable": "false", "x-request-id": "r"}
        return streamed(httpx.Response(status, headers=headers, json=answer))

    def _route(self, request: httpx.Request, status: int) -> str:
        for template in self.templates:
            pattern = re.sub(r"\\\{name\\\}", ".+", re.escape(template))
            if re.fullmatch(re.sub(r"\\\{[a-z_]+\\\}", "[^/]+", pattern), request.url.path):
                return f"{request.method} {template} {status}"
        return f"{request.method} {request.url.path} {status}"


def _nothing(_: Json) -> None:
    pass
