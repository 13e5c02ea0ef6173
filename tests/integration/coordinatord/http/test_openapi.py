"""Send requests generated from /openapi.json. It must describe every response, and none may be an internal error."""

from typing import Any, get_args
from urllib.parse import quote, urlencode

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.api.error_bodies import ErrorType
from tests.integration.coordinatord.scene.escrows import MOCK
from tests.integration.coordinatord.scene.from_schema import Schema, operations, strayed
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.specification import SPECIFICATION
from tests.integration.coordinatord.scene.stage import Stage

pytestmark = pytest.mark.anyio


@pytest.fixture
def stage_settings() -> dict[str, object]:
    """An escrow that reads every body. Streams and held polls never end, so their limits are 0."""
    return {**MOCK, "event_listeners_per_caller": 0}


async def _document(stage: Stage) -> Schema:
    document: Schema = (await stage.http.get("/openapi.json")).json()
    return document


def _judge(document: Schema, operation: Schema, answer: Any) -> None:
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
        _judge(document, operation, answer)


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


async def test_answers_of_the_whole_life_of_a_job_are_described(stage: Stage, client: Party, provider: Party) -> None:
    document = await _document(stage)
    paths = document["paths"]
    body = await client.paid()
    order = {name: value for name, value in body.items() if name not in {"auth_sig", "amount", "container"}}
    job = body["job_id"]
    probe = {"model_id": 1, "sla_secs": 60, "units_in": 1, "units_out": 1}
    outdated = client.pay(body, 1)
    for operation, answer in (
        (paths["/v1/jobs"]["post"], await stage.http.post("/v1/jobs", json=probe)),
        (paths["/v1/jobs"]["post"], await stage.http.post("/v1/jobs", json=order)),
        (paths["/v1/jobs"]["post"], await stage.http.post("/v1/jobs", json=outdated)),
        (paths["/v1/jobs"]["post"], await stage.http.post("/v1/jobs", json=body)),
        (paths["/v1/jobs"]["post"], await stage.http.post("/v1/jobs", json=body)),
        (paths["/evm/ops"]["post"], await provider.run(provider.claim(job))),
        (paths["/evm/ops"]["post"], await provider.run(provider.claim(job))),
        (paths["/evm/ops"]["post"], await provider.run(provider.settle(job, result="AAAA"))),
        (paths["/v1/jobs/{id}"]["get"], await stage.http.get(f"/v1/jobs/{job}")),
        (paths["/evm/jobs/{job_id}"]["get"], await stage.http.get(f"/evm/jobs/{job}")),
        (paths["/evm/jobs"]["get"], await stage.http.get("/evm/jobs")),
        (paths["/evm/jobs/summary"]["get"], await stage.http.get(f"/evm/jobs/summary?owner={client.address}")),
        (
            paths["/v1/jobs/{id}/cancel"]["post"],
            await stage.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job)),
        ),
        (paths["/evm/asks"]["put"], await provider.publish(provider.asks(1, (1, 60, 1, 1)))),
        (paths["/evm/asks"]["get"], await stage.http.get("/evm/asks")),
        (paths["/evm/asks/floors"]["get"], await stage.http.get("/evm/asks/floors")),
        (paths["/evm/providers"]["get"], await stage.http.get("/evm/providers")),
        (paths["/v1/models"]["get"], await stage.http.get("/v1/models")),
        (paths["/v1/models/{name}"]["get"], await stage.http.get("/v1/models/demo/text-small")),
        (paths["/v1/models/{name}"]["get"], await stage.http.get("/v1/models/demo/none")),
        (paths["/evm/chain"]["get"], await stage.http.get("/evm/chain")),
        (paths["/key"]["get"], await stage.http.get("/key")),
    ):
        _judge(document, operation, answer)


async def test_responses_of_a_filled_index_match_the_document(stage: Stage) -> None:
    document = await _document(stage)
    known = (await stage.http.get("/v1/models")).headers["etag"]
    unchanged = await stage.http.get("/v1/models", headers={"if-none-match": known})
    assert unchanged.status_code == 304
    _judge(document, document["paths"]["/v1/models"]["get"], unchanged)
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
