"""Generated requests: /openapi.json describes every response. Tests show every response of the specification."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, get_args
from urllib.parse import quote, urlencode

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.api.error_bodies import ErrorType
from tests.integration.coordinatord.scene.escrows import MOCK
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.specification import SPECIFICATION
from tests.integration.coordinatord.scene.stage import Stage

Schema = dict[str, Any]

_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**60, max_value=2**300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["", "0x", "-1", "01", "1e3", "١٢", "0x" + "g" * 64, "AB==", "\u0000", "bafy"]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Generate values that the schema allows."""
    if "anyOf" in schema:
        return st.one_of([values(one) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum", 0), schema.get("maximum", 2**53 - 1))
        case "array":
            return st.lists(values(schema["items"]), max_size=min(3, schema.get("maxItems", 3)))
        case "object":
            return _objects(schema)
        case "string" if "pattern" in schema:
            text = st.from_regex(schema["pattern"], fullmatch=True)
            return text.filter(lambda t: len(t) <= schema.get("maxLength", 10**9))
        case _:
            return st.text(max_size=min(30, schema.get("maxLength", 30)))


def _objects(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return st.fixed_dictionaries(
        {name: strayed(properties[name]) for name in required},
        optional={name: strayed(one) for name, one in properties.items() if name not in required},
    )


def strayed(schema: Schema) -> st.SearchStrategy[Any]:
    """Generate values that match the schema, and in one of ten cases values that do not."""
    return st.integers(0, 9).flatmap(lambda n: values(schema) if n else _JUNK)


def operations(document: Schema) -> st.SearchStrategy[tuple[str, str, Schema]]:
    """Yield (path, method, operation)."""
    return st.sampled_from(
        [
            (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
    )


@pytest.fixture
def stage_settings() -> dict[str, object]:
    """An escrow that reads every body. Streams and held polls never end, so their limits are 0."""
    return {**MOCK, "event_listeners_per_caller": 0}


async def _document(stage: Stage) -> Schema:
    document: Schema = (await stage.http.get("/openapi.json")).json()
    return document


def assert_described(document: Schema, operation: Schema, answer: Any) -> None:
    """Check that the operation describes the headers and body of the response."""
    described = operation["responses"].get(str(answer.status_code))
    assert described is not None, f"{answer.status_code} is not described: {answer.text}"
    for name, reference in described["headers"].items():
        header = document["components"]["headers"][reference["$ref"].rpartition("/")[2]]
        if header.get("required"):
            assert name in answer.headers
        if name in answer.headers:
            jsonschema.validate(answer.headers[name], header["schema"])
    for name in ("etag", "retry-after", "x-svc-page-truncated", "x-svc-retryable"):
        assert name in described["headers"] or name not in answer.headers, name
    # By the specification, the only error without the header.
    assert ("x-svc-retryable" not in answer.headers) == (answer.status_code < 400 or '"model_not_found"' in answer.text)
    if "content" in described:
        if "application/json" not in described["content"]:
            assert answer.headers["content-type"] in described["content"]
            return
        assert answer.headers["content-type"] == "application/json"
        schema = described["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())


async def test_responses_match_the_openapi_document(stage: Stage, client: Party, provider: Party) -> None:
    await client.post()
    document = await _document(stage)

    @given(operations(document), st.data())
    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    def make(chosen: tuple[str, str, Schema], data: st.DataObject) -> None:
        requests.append((chosen, _request(chosen, data)))

    requests: list[tuple[tuple[str, str, Schema], dict[str, Any]]] = []
    make()
    for (_, _, operation), request in requests:
        answer = await stage.http.request(**request, headers=provider.authorization)
        assert answer.status_code < 500, (request, answer.text)
        assert_described(document, operation, answer)


def _request(chosen: tuple[str, str, Schema], data: st.DataObject) -> dict[str, Any]:
    path, method, operation = chosen
    query = []
    for parameter in operation["parameters"]:
        value = data.draw(strayed(parameter["schema"]))
        text = value if isinstance(value, str) else str(value)
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(text, safe="", errors="replace") or "x")
        elif data.draw(st.integers(0, 2)) == 0:
            query.append((parameter["name"], text.encode(errors="replace")))
    request: dict[str, Any] = {"method": method.upper(), "url": f"{path}?{urlencode(query)}"}
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        request["json"] = data.draw(strayed(content["application/json"]["schema"]))
    if "multipart/form-data" in content:
        parts = data.draw(strayed(content["multipart/form-data"]["schema"]))
        fields = parts if isinstance(parts, dict) else {}
        request["data"] = {name: str(value) for name, value in fields.items() if name != "file"}
        request["files"] = {"file": ("a.jsonl", str(fields.get("file")).encode(errors="replace"))}
    return request


async def test_responses_of_a_filled_index_match_the_document(stage: Stage) -> None:
    document = await _document(stage)
    known = (await stage.http.get("/v1/models")).headers["etag"]
    unchanged = await stage.http.get("/v1/models", headers={"if-none-match": known})
    assert unchanged.status_code == 304
    assert_described(document, document["paths"]["/v1/models"]["get"], unchanged)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert not ("304" in operation["responses"] and path.startswith("/v1/batches"))  # a session's own


async def test_document_describes_every_specified_answer(stage: Stage) -> None:
    paths = (await _document(stage))["paths"]
    for route, answers in SPECIFICATION.items():
        method, _, path = route.partition(" ")
        responses = paths[path.replace("...", "")][method.lower()]["responses"]
        for status, code in answers:
            assert str(status) in responses, (route, status)
            if code is not None and not code.startswith("<") and code not in get_args(ErrorType):
                assert code in responses[str(status)]["description"], (route, status, code)


def _marks(module: ModuleType) -> set[tuple[str, int, str | None]]:
    shown = set()
    for test in vars(module).values():
        for mark in getattr(test, "pytestmark", []) if callable(test) else []:
            if mark.name == "shows":
                shown.add(mark.args)
            if mark.name == "parametrize":
                for case in mark.args[1]:
                    shown |= {m.args for m in getattr(case, "marks", ()) if m.name == "shows"}
    return shown


def test_every_specified_answer_is_shown_by_a_test() -> None:
    folder = Path(__file__).parents[1]
    names = sorted(".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.glob("*/test_*.py"))
    shown = set()
    for name in names:
        shown |= _marks(importlib.import_module(f"tests.integration.coordinatord.{name}"))
    wanted = {(route, status, code) for route, answers in SPECIFICATION.items() for status, code in answers}
    assert wanted - shown == set()
    assert shown - wanted == set()
