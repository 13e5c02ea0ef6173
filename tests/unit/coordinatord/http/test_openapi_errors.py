"""The table of errors lists exactly the codes that the coordinator's sources raise."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from common import artifacts
from common.api.errors import CONTRACT_ERRORS, ERRORS_BY_CODE, LINE_ERRORS, UNCODED_ERRORS
from tests.support.openapi import declared

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
            for text in _codes(node):
                if isinstance(text, str) and CODE.fullmatch(text):
                    found[text] = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
    return found


def _codes(node: ast.AST) -> Iterator[str]:
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
