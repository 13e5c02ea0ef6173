"""Bodies of the API in both directions: requests read by the coordinator, its responses, and lines of batches."""

import importlib
import json
import pkgutil
import types
from typing import Any, Final

import attrs
import msgspec

import common.api
from common import bundle, domains
from common.api import errors
from common.api.fields import object_example, parse_request_json, read_object, read_object_or_faults
from common.api.shapes import Shape, read_shape
from common.bundle import BundleItem, ItemResult
from common.canonical_json import canonical
from common.pricing.units import Units
from common.quotes import FeeTerms
from common.refusal import Refused
from common.secp256k1 import Wallet
from common.strict_json import parse
from coordinatord.api import batches, escrow, files, orders, sessions
from coordinatord.api import provider_ops as operations
from coordinatord.api.batches.line_checks import LineChecks, PaidLine
from coordinatord.api.batches.line_reader import InputLine
from coordinatord.api.orders.bodies import read_submission
from svc.core.batch_lines import read_lines
from svc.core.bundles import read_job_sizes
from svc.errors import SvcError
from svcd.journal.book_row import Job
from tests.fuzz.chain_data import _BOOK
from tests.fuzz.target import Target, refused
from tests.support.fakes.submissions import Submitter

_WORDS: Final = (
    *(b"null", b"true", b"-1", b"1e9", b'"0x', b'"', b"[]", b"{}", b'"115792089237316195423570985008687907853269984"'),
    *(b'"rate_in":', b'"container":', b'"auth_sig":', b'"body":', b'"custom_id":', b'"url":', b'"window":'),
)


def _modules(package: types.ModuleType) -> list[types.ModuleType]:
    names = [each.name for each in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [importlib.import_module(name) for name in names if not name.endswith(".__main__")]


def _shapes_of_callers() -> list[type[Any]]:
    """Return every class whose fields define how to read them from JSON."""
    found = {}
    packages = (batches, escrow, files, operations, orders, sessions)
    for module in (module for package in packages for module in _modules(package)):
        for each in vars(module).values():
            if isinstance(each, type) and attrs.has(each) and any("kind" in f.metadata for f in attrs.fields(each)):
                found[f"{each.__module__}.{each.__qualname__}"] = each
    return [found[name] for name in sorted(found)]


def _shapes_of_answers() -> list[Any]:
    """Return every response body as clients read it, with integers for numbers."""
    found = {}
    for module in _modules(common.api):
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, Shape) and each is not Shape:
                parameters = getattr(each, "__parameters__", ())
                found[f"{each.__module__}.{each.__qualname__}"] = each[(int,) * len(parameters)] if parameters else each
    return [found[name] for name in sorted(found)]


_CALLERS: Final = _shapes_of_callers()
_ANSWERS: Final = _shapes_of_answers()


def check_bodies(data: bytes) -> None:
    """Check each shape with any JSON. It returns the value, or all faults at once."""
    if not data:
        return
    shape = _CALLERS[data[0] % len(_CALLERS)]
    values = refused(lambda: parse_request_json(data[1:]))
    if not isinstance(values, dict):
        return
    try:
        read = read_object(shape, values)
    except Refused as refusal:
        faults = read_object_or_faults(shape, values)
        assert isinstance(faults, list)
        assert refusal.message
        return
    assert read_object_or_faults(shape, values) == read
    refused(lambda: read_submission(values))
    refused(lambda: Job.read(values))


def check_answers(data: bytes) -> None:
    """Check that reading, writing and reading again gives the same value."""
    if not data:
        return
    shape = _ANSWERS[data[0] % len(_ANSWERS)]
    value = refused(lambda: parse_request_json(data[1:]))
    read = refused(lambda: read_shape(shape, value))
    if read is not None:
        again = msgspec.json.decode(msgspec.json.encode(read))
        assert read_shape(shape, again) == read


_SUBMITTER: Final = Submitter(
    Wallet(bytes(range(1, 33))),
    domains.Domains.of(_BOOK),
    1,
    _BOOK.job_registry,
    FeeTerms(100, 5),
    bytes([9]) + bytes(31),
)
_NOW: Final = 1_700_000_000.0
_CHECKS: Final = LineChecks(_SUBMITTER.domains, _SUBMITTER.registry, "/v1/responses", _SUBMITTER.terms, _NOW)


def check_batch_lines(data: bytes) -> None:
    """Check that each line is a submission, or skipped with a documented error code."""
    lines = [InputLine(number, text) for number, text in enumerate(data.split(b"\n"), 1)]
    checked = _CHECKS.check_lines(lines)
    assert [one.line for one in checked] == [line.number for line in lines]
    for one in checked:
        assert isinstance(one, PaidLine) or one.code in errors.LINE_ERRORS or one.code in errors.ERRORS_BY_CODE, one
    refused(lambda: list(read_lines(data.split(b"\n"), "1h")), SvcError)


def check_bundles(data: bytes) -> None:
    """Check that writing a parsed bundle gives the same bytes, and that its units are counted or refused."""
    value = refused(lambda: parse(data))
    bundle.announced_max_items(value)
    if not isinstance(value, dict):
        return
    items = refused(lambda: bundle.read_bundle(value))
    if items is not None:
        assert bundle.read_bundle(bundle.bundle_input(items)) == items
    results = refused(lambda: bundle.read_bundle_output(value))
    if results is not None:
        assert bundle.read_bundle_output(bundle.bundle_output(results)) == results
        units = [Units(result.units_in, result.units_out) for result in results]
        refused(lambda: bundle.bundle_units(units, 3, 7))
    for wrapped in ({"svc-lines": data.decode("latin-1")}, {"svc-lines": "1", "svc-lines-2": data.decode("latin-1")}):
        sizes = refused(lambda wrapped=wrapped: read_job_sizes(wrapped))
        assert sizes is None or all(size > 0 for size in sizes)


def _bundles() -> list[bytes]:
    items = (BundleItem({"input": "a"}, "id", 5), BundleItem({}))
    done = ItemResult("completed", "id", [1], {"units": 1}, None, 2, 3)
    results = (done, ItemResult("failed", error_code="backend_error"), ItemResult("not_run"))
    announced = bundle.announcement()
    return [canonical(value) for value in (bundle.bundle_input(items), bundle.bundle_output(results), announced)] + [
        b"256*39 16"
    ]


def _lines() -> list[bytes]:
    whole = _SUBMITTER.line(sla_secs=3600, expires_at=int(_NOW) + 60) | {"container": "AQ=="}
    plain = {
        "custom_id": "a",
        "url": "/v1/responses",
        "method": "POST",
        "body": {"model": "m", "input": "x", "rate_in": 1},
    }
    return [json.dumps(line).encode() for line in (whole, plain, {"signature": None}, [], "x")]


def _callers() -> list[bytes]:
    return [bytes((n,)) + json.dumps(_example(shape)).encode() for n, shape in enumerate(_CALLERS)]


def _example(shape: type[Any]) -> dict[str, Any]:
    without: list[str] = []
    while True:
        try:
            return object_example(shape, *without)
        except KeyError as unexplained:  # a field that the pages do not document
            without.append(unexplained.args[0])


def _answers() -> list[bytes]:
    return [bytes((n,)) + json.dumps(_sample(msgspec.json.schema(shape))).encode() for n, shape in enumerate(_ANSWERS)]


def _sample(schema: dict[str, Any]) -> Any:
    """Return a minimal value of a JSON schema."""
    defined = schema.get("$defs", {})

    def made(of: dict[str, Any], depth: int) -> Any:
        if "$ref" in of:
            return made(defined[of["$ref"].rpartition("/")[2]], depth + 1)
        for choices in ("anyOf", "oneOf"):
            if choices in of:
                return made(of[choices][-1 if depth > 6 else 0], depth + 1)
        if "enum" in of:
            return of["enum"][0]
        if of.get("type") == "object":
            return {name: made(each, depth + 1) for name, each in of.get("properties", {}).items()}
        if of.get("type") == "array":
            return [made(of["items"], depth + 1)] if depth < 6 and isinstance(of.get("items"), dict) else []
        return {"integer": 1, "number": 0.5, "boolean": True, "null": None}.get(of.get("type", ""), "1")

    return made(schema, 0)


TARGETS: Final = (
    Target("bodies", check_bodies, _callers, _WORDS),
    Target("answers", check_answers, _answers, _WORDS),
    Target("batch-lines", check_batch_lines, _lines, _WORDS),
    Target("bundles", check_bundles, _bundles, _WORDS),
)
