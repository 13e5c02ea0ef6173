"""The API document describes every part, its examples match its schemas, and it lists the errors that are raised."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from common import artifacts
from common.api import limits
from common.api.errors import CONTRACT_ERRORS, ERRORS_BY_CODE, LINE_ERRORS, UNCODED_ERRORS
from common.api.member_texts import MEMBER_TEXTS
from common.api.worked_order import ANY_SIGNATURE
from coordinatord.api.orders.bodies import OrderBody, read_submission
from coordinatord.http.openapi import build_openapi_document
from docs.http_reference import http_reference
from tests.support.openapi import OPENAPI, declared, document
from tests.vectors.vector_file import cases

Schema = dict[str, Any]
DOCUMENT: Schema = json.loads(json.dumps(build_openapi_document(declared())))
REFERENCE = http_reference(DOCUMENT)
OPERATIONS = {one["operationId"]: one for methods in DOCUMENT["paths"].values() for one in methods.values()}
by_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def test_committed_document_is_the_one_that_the_routes_make() -> None:
    assert OPENAPI.read_text("utf-8") == document(), "run `make openapi`"


def test_operations_have_names_that_generators_can_use() -> None:
    assert len(OPERATIONS) == sum(map(len, DOCUMENT["paths"].values()))
    assert [name for name in OPERATIONS if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name)] == []


@by_operation
def test_operation_and_its_answers_are_described(operation: Schema) -> None:
    assert {tag["name"] for tag in DOCUMENT["tags"]} >= set(operation["tags"])
    assert operation["summary"]
    assert operation["description"]
    assert "security" in operation
    for parameter in operation["parameters"]:
        assert len(parameter["description"]) > 5, parameter["name"]
    for status, response in operation["responses"].items():
        assert len(response["description"]) > 5, status
        assert "see the schema" not in response["description"]


def _properties(schema: Any, at: str) -> Iterator[tuple[str, Schema]]:
    if isinstance(schema, dict):
        for name, member in schema.get("properties", {}).items() if schema.get("type") == "object" else ():
            yield f"{at}.{name}", member
            yield from _properties(member, f"{at}.{name}")
        for key in ("anyOf", "items", "allOf"):
            parts = schema.get(key, [])
            for part in parts if isinstance(parts, list) else [parts]:
                yield from _properties(part, at)


def _all_properties() -> Iterator[tuple[str, Schema]]:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        yield from _properties(schema, name)
    for operation_id, operation in OPERATIONS.items():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            yield from _properties(content["schema"], operation_id)


def test_longest_values_of_a_head_fit_into_one_with_another() -> None:
    longest = [
        parameter["schema"]["maxLength"]
        for operation in OPERATIONS.values()
        for parameter in operation["parameters"]
        if "maxLength" in parameter["schema"]
    ]
    assert longest
    assert 2 * max(longest) + limits.KIB < limits.MAX_HEAD_BYTES


def test_every_property_has_a_description() -> None:
    lacking = [at for at, member in _all_properties() if len(member.get("description", "")) < 4]
    assert lacking == []
    kinds = {"a decimal integer"}
    assert [at for at, member in _all_properties() if member["description"] in kinds] == []


def test_times_and_amounts_name_their_unit() -> None:
    times = re.compile(r"(_at|_before|signed_at)$")
    for at, member in _all_properties():
        if times.search(at):
            assert "Unix seconds" in member["description"], at
        if re.search(r"\.(amount|cap|fee|gas_fee|rate_in|rate_out|escrowed)$", at):
            assert "base units" in member["description"], at
        if at.endswith("_ms"):
            assert "milliseconds" in member["description"], at


def test_enumerated_numbers_have_documented_meanings() -> None:
    job = DOCUMENT["components"]["schemas"]["Job"]["properties"]
    for name, most in (("state", 3), ("ended_because", 5)):
        assert job[name]["enum"] == list(range(most + 1))
        assert len(job[name]["x-enum-descriptions"]) == len(job[name]["x-enum-varnames"]) == most + 1
        assert all(f"- {n} {job[name]['x-enum-varnames'][n]}: " in job[name]["description"] for n in range(most + 1))


def test_headings_of_the_reference_are_unique() -> None:
    headings = re.findall(r"^#+ (.+)$", REFERENCE, re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert len(headings) >= len(OPERATIONS) + len(DOCUMENT["tags"])


def test_members_of_one_variant_are_marked() -> None:
    section = REFERENCE.split("\n### GET /key\n")[1].split("\n### ")[0]
    told = dict(re.findall(r"^\| `evidence\.(\w+)` \| (.*) \|$", section, re.MULTILINE))
    alone = {name for name, said in told.items() if "of `mock-coordinator-v1` alone: " in said}
    assert alone == {"measurement", "tcb", "quote"}
    assert told["type"].startswith("`static-coordinator-v1` or `mock-coordinator-v1` |")
    assert told.keys() - alone == {"type", "report_data", "debug", "release"}


def test_each_body_variant_is_named_with_its_members() -> None:
    section = REFERENCE.split("\n### POST /evm/simulate/claim\n")[1].split("\n### ")[0]
    bodies = re.findall(r"\n`(\w+)`:\n\n```json\n(.*?)\n```\n\n(.*?)(?=\n\n)", section, re.DOTALL)
    assert [name for name, _, _ in bodies] == ["ClaimAccepted", "ClaimRefused"]
    for _, example, table in bodies:
        assert list(json.loads(example)) == re.findall(r"^\| `(\w+)`", table, re.MULTILINE)


def test_every_described_property_is_used() -> None:
    used = {at.rpartition(".")[2] for at, _ in _all_properties()}
    used |= {parameter["name"] for operation in OPERATIONS.values() for parameter in operation["parameters"]}
    assert set(MEMBER_TEXTS) - used == set()


def test_no_code_is_a_placeholder() -> None:
    for operation_id, operation in OPERATIONS.items():
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                for code in _codes(response["content"]["application/json"]["schema"]):
                    assert code is None or re.fullmatch(r"[a-z]+(_[a-z]+)*|[A-Z][A-Za-z]+", code), (operation_id, code)


def _codes(schema: Schema) -> Iterator[Any]:
    for each in schema.get("anyOf", [schema]):
        component = DOCUMENT["components"]["schemas"][each["$ref"].rpartition("/")[2]]
        members = component["properties"].get("error", {}).get("properties", {})
        yield from members.get("code", {}).get("enum", [])


@by_operation
def test_examples_match_their_schemas(operation: Schema) -> None:
    contents = [*operation.get("requestBody", {}).get("content", {}).values()]
    contents += [each for one in operation["responses"].values() for each in one.get("content", {}).values()]
    shown = 0
    for content in contents:
        validator = jsonschema.Draft202012Validator({**content["schema"], "components": DOCUMENT["components"]})
        for name, example in content.get("examples", {}).items():
            validator.validate(example["value"])
            shown += bool(name)
    assert shown


def test_lines_of_batch_files_have_a_schema_and_an_example_each() -> None:
    content = OPERATIONS["getFileContent"]["responses"]["200"]["content"]["application/octet-stream"]
    schemas = content["schema"]["contentSchema"]["anyOf"]
    assert [each["$ref"].rpartition("/")[2] for each in schemas] == ["OutputLine", "ErrorLine"]
    for schema, example in zip(schemas, content["x-svc-lines"], strict=True):
        validator = jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
        validator.validate(example)
        assert not validator.is_valid({**example, "id": 1})


def test_example_of_a_submission_is_the_worked_order() -> None:
    [order] = cases("worked_order.json")
    examples = OPERATIONS["postJob"]["requestBody"]["content"]["application/json"]["examples"]
    body = read_submission(examples["submission"]["value"])
    assert isinstance(body, OrderBody)
    assert (body.signature.hex(), (body.auth_sig or b"").hex()) == (order["order_signature"][2:], order["auth_sig"][2:])
    assert (body.job_id.hex(), body.amount) == (order["job_id"][2:], int(order["amount"]))
    assert examples["submission"]["value"]["container"] == order["container"]
    settle = OPERATIONS["runOp"]["requestBody"]["content"]["application/json"]["examples"]["settle"]["value"]
    assert (settle["signature"], settle["result"]) == (order["settle_signature"], order["sealed_result"])
    assert (settle["issued_at"], settle["completion_tok"]) == (
        int(order["settle_issued_at"]),
        int(order["completion_tok"]),
    )
    job = OPERATIONS["getJob"]["responses"]["200"]["content"]["application/json"]["examples"]["ClientJob"]["value"]
    assert (job["result_cid"], job["svc"]["task_cid"]) == (order["result_cid"], order["task_cid"])


def test_example_signatures_are_valid_or_recognisable() -> None:
    [order] = cases("worked_order.json")
    found = set()
    for one in _objects(DOCUMENT):
        for name, value in one.items():
            if isinstance(value, str) and re.fullmatch("0x[0-9a-f]{130}", value):
                of_order = one.get("c") == order["c"]
                true = {
                    order["order_signature"]: name == "signature" and of_order,
                    order["auth_sig"]: name == "auth_sig" and of_order,
                    order["settle_signature"]: one.get("op") == "settle" and one["job_id"] == order["job_id"],
                    ANY_SIGNATURE: not of_order and one.get("op") != "settle",
                }
                assert true.get(value), one
                found.add(value)
    assert len(found) == 4


def test_nothing_in_it_is_of_one_deployment() -> None:
    text = json.dumps(DOCUMENT)
    assert [url for url in re.findall(r"https?://[^\s\"]+", text) if ".example" not in url] == []
    assert [server["url"] for server in DOCUMENT["servers"]] == ["/"]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(inner)


def test_every_example_of_a_job_is_of_one_state() -> None:
    examples = [
        one["value"]
        for operation in OPERATIONS.values()
        for response in operation["responses"].values()
        for content in response.get("content", {}).values()
        for one in content.get("examples", {}).values()
    ]
    jobs = [each for each in _objects(examples) if "state" in each and "completion_tok" in each]
    assert {job["state"] for job in jobs} == {0, 2}
    for job in jobs:
        is_open, is_claimed, is_settled = (job["state"] == state for state in (0, 1, 2))
        assert ("reclaimable_at" in job, "ended_at" in job) == (is_claimed, job["state"] > 1)
        assert is_claimed or "reclaimable_block" not in job
        assert (job["ended_because"], job["provider_id"] == "0") == (1 if is_settled else 0, is_open)
        assert (job["completion_tok"] == "0") != is_settled


ROOT = Path(__file__).parents[4]
# By function or class: where its error code is, by position, as `code`, or as `line_code`.
CARRIERS = {
    "Refused": 2,
    "Retryable": 2,
    "Unauthorised": 1,
    "View": 2,
    "LineRecord": 3,
    "_failure_record": 1,
    "NotReleased": 0,
    "NotHandedOver": 0,
    "PredictedRefusal": 0,
    "WithErrorCode": 1,
    "Choice": 1,
    "new_fault": 2,
    "error": 99,
    "evolve": 99,
    "view_error": 1,
    "read_many": 2,
    "find": 1,
    "_uncoded_error": 99,
}
# Operators' commands and the exchange between escrow instances do not answer HTTP clients.
NOT_SERVED = ("coordinatord/market", "coordinatord/api/escrow/peer.py", "common/inclusion", "common/receipt")
# Errors of formats that only clients and providers read.
CLIENTS_OWN = {"undecryptable", "malformed_envelope", "malformed_result", "malformed_bundle", "bad_handover"} | {
    "bad_frame",
    "message_too_large",
}
# Codes that routes write literally.
WRITTEN_OUT = {"model_not_found", "not_party", "unknown_job"}
CODE = re.compile(r"[a-z]+(_[a-z]+)*|[A-Z][A-Za-z]+")


def served_sources() -> Iterator[Path]:
    for package in ("coordinatord", "common"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith(NOT_SERVED) and "node_modules" not in name and name != "common/api/errors.py":
                yield path


def raised() -> dict[str, str]:
    """Return the codes, each with a place that raises it."""
    found = {}
    for path in served_sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for text in _raised_by(node):
                if isinstance(text, str) and CODE.fullmatch(text):
                    found[text] = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
    return found


def _raised_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in CARRIERS:
            at = CARRIERS[name]
            arguments = [*node.args[at : at + 1], *(k.value for k in node.keywords if k.arg in ("code", "line_code"))]
            yield from (
                each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        defaults = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
        yield from (d.value for a, d in defaults if a.arg == "code" and isinstance(d, ast.Constant))
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
        # Tables by code: `_DROPPED_MESSAGES`, `LINE_CODE_BY_END`, `_RELEASE_REFUSALS`.
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if names & {"_DROPPED_MESSAGES", "NOT_POSTED_MESSAGES"}:
            yield from (key.value for key in node.value.keys if isinstance(key, ast.Constant))
        if "LINE_CODE_BY_END" in names:
            yield from (value.value for value in node.value.values if isinstance(value, ast.Constant))


CONTRACTS = {name for error in CONTRACT_ERRORS for name in error.names}
KNOWN = {*ERRORS_BY_CODE, *LINE_ERRORS, *CONTRACTS, *(name for name in UNCODED_ERRORS if isinstance(name, str))}


def test_raised_and_explained_codes_are_the_same() -> None:
    found = raised()
    assert {code: place for code, place in found.items() if code not in KNOWN | CLIENTS_OWN} == {}
    assert {*ERRORS_BY_CODE, *LINE_ERRORS} - WRITTEN_OUT <= found.keys()


def test_every_code_has_a_route_and_an_explanation() -> None:
    told = {
        reply.code for route in declared() for reply in route.replies if reply.shape is None and reply.status >= 400
    }
    everywhere = {"body_too_large", "busy", "not_ready", "model_not_found"}
    assert told - {None} <= KNOWN
    assert set(ERRORS_BY_CODE) - everywhere <= told
    assert {name for name in UNCODED_ERRORS if isinstance(name, str)} <= told | everywhere


# Errors of calls that only an admin, a registry or the relayer makes, or that no call makes.
NOT_EXPLAINED = {
    *("FeeTooHigh", "InvalidModel", "InvalidSla", "InvalidTokenGas", "InvalidTreasury", "InvalidStatus", "ZeroAddress"),
    *("OwnableInvalidOwner", "OwnableUnauthorizedAccount", "ExpectedPause", "NotJobRegistry", "SenderNotRelayer"),
    *("CallStarved", "ReentrancyGuardReentrantCall", "InvalidShortString", "StringTooLong"),
    *("InvalidJobRegistry", "NestedRelay"),
}


def test_contract_errors_are_the_contracts() -> None:
    abi = {
        name
        for each in ("JobRegistry", "ProviderRegistry", "AskRegistry")
        for name in artifacts.load_artifact(each).errors.values()
    }
    assert len(CONTRACTS) == sum(len(error.names) for error in CONTRACT_ERRORS)
    assert abi - NOT_EXPLAINED == CONTRACTS
    assert abi >= NOT_EXPLAINED


def test_cause_and_remedy_are_said() -> None:
    assert [
        error for error in (*UNCODED_ERRORS.values(), *ERRORS_BY_CODE.values()) if not (error.cause and error.remedy)
    ] == []
