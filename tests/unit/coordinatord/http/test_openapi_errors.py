"""The table of errors lists exactly the codes that the coordinator's sources raise."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import artifacts
from common.api.errors import CODED, CONTRACT_ERRORS, LINE_ERRORS, UNCODED
from tests.openapi.__main__ import declared

ROOT = Path(__file__).parents[4]
# By function or class: where its error code is, by position, as `code`, or as `line_code`.
CARRIERS = {
    "Refused": 2,
    "Retryable": 2,
    "NotSigned": 1,
    "View": 2,
    "LineRecord": 3,
    "_failed": 1,
    "NotReleased": 0,
    "NotHandedOver": 0,
    "WouldRefuse": 0,
    "Coded": 1,
    "Choice": 1,
    "fault": 2,
    "error": 99,
    "evolve": 99,
    "unreadable": 1,
    "read_many": 2,
    "find": 1,
    "_typed": 99,
}
# Operators' commands and the exchange between escrow instances do not answer HTTP clients.
NOT_SERVED = ("coordinatord/market", "coordinatord/api/escrow/peer.py", "common/inclusion", "common/receipt")
# Errors of formats that only clients and providers read.
CLIENTS_OWN = {"undecryptable", "malformed_envelope", "malformed_result", "malformed_bundle", "bad_handover"}
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
        # Tables by code: `_DROPPED`, `ENDED_BECAUSE`, `_NOT_RELEASED`.
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if names & {"_DROPPED", "NOT_POSTED"}:
            yield from (key.value for key in node.value.keys if isinstance(key, ast.Constant))
        if "ENDED_BECAUSE" in names:
            yield from (value.value for value in node.value.values if isinstance(value, ast.Constant))


RAISED = raised()
CONTRACTS = {name for error in CONTRACT_ERRORS for name in error.names}
KNOWN = {*CODED, *LINE_ERRORS, *CONTRACTS, *(name for name in UNCODED if isinstance(name, str))}


@pytest.mark.parametrize("code", sorted(RAISED))
def test_code_that_is_raised_is_explained(code: str) -> None:
    assert code in KNOWN | CLIENTS_OWN, RAISED[code]


@pytest.mark.parametrize("code", sorted({*CODED, *LINE_ERRORS}))
def test_code_that_is_explained_is_raised(code: str) -> None:
    assert code in RAISED or code in _written_out(), code


def _written_out() -> set[str]:
    """Return the codes that answers for a single body name literally."""
    return {"model_not_found"}


def test_every_code_has_a_route_and_an_explanation() -> None:
    told = {
        reply.code for route in declared() for reply in route.replies if reply.shape is None and reply.status >= 400
    }
    everywhere = {"body_too_large", "busy", "not_ready", "model_not_found"}
    assert told - {None} <= KNOWN
    assert set(CODED) - everywhere <= told
    assert {name for name in UNCODED if isinstance(name, str)} <= told | everywhere


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
        for name in artifacts.load(each).errors.values()
    }
    assert len(CONTRACTS) == sum(len(error.names) for error in CONTRACT_ERRORS)
    assert abi - NOT_EXPLAINED == CONTRACTS
    assert abi >= NOT_EXPLAINED


def test_cause_and_remedy_are_said() -> None:
    assert [error for error in (*UNCODED.values(), *CODED.values()) if not (error.cause and error.remedy)] == []
