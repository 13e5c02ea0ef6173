"""Make the vectors of bundles: `python -m tests.vectors.generate_bundle`.

The numbers are literals, not computed by the code under test.
"""

from typing import Any, Final

from tests.vectors.vector_file import FOLDER, Case, text_of

_BUNDLE: Final = {"svc_bundle": 1}
_ANNOUNCED: Final = {"svc_bundle": {"v": 1, "items": 500}}
_HI: Final = {"input": {"input": "hi"}}  # 14 bytes: 4 units; 4096 units of output
_CAPPED: Final = {"custom_id": "a", "input": {"input": "high", "max_output_tokens": 64}}  # 39 bytes: 10 units
_EMBEDDED: Final = {"custom_id": "b", "input": {"input": "hi"}, "units_out": 0}

# name, evidence, largest bundle, or 0 without bundles
_EVIDENCE: Final[tuple[tuple[str, Any, int], ...]] = (
    ("an announcement", _ANNOUNCED, 500),
    ("an announcement beside other evidence", {"report": "0x00", **_ANNOUNCED}, 500),
    ("more than the form allows", {"svc_bundle": {"v": 1, "items": 9999}}, 500),
    ("a smaller bundle", {"svc_bundle": {"v": 1, "items": 20}}, 20),
    ("bundles of one", {"svc_bundle": {"v": 1, "items": 1}}, 0),
    ("another version", {"svc_bundle": {"v": 2, "items": 500}}, 0),
    ("items as a string", {"svc_bundle": {"v": 1, "items": "500"}}, 0),
    ("other evidence only", {"report": "0x00"}, 0),
    ("evidence that is no object", ["svc_bundle"], 0),
    ("no evidence", None, 0),
)

# name, endpoint, items, rates of input and output, units_out of the order
_ORDERS: Final[tuple[tuple[str, str, list[Any], tuple[int, int], int], ...]] = (
    ("input at half the rate of output", "/v1/responses", [_CAPPED, _HI], (100_000, 200_000), 64 + 4096 + 7),
    ("input at the rate of output", "/v1/responses", [_CAPPED, _HI], (200_000, 200_000), 64 + 4096 + 14),
    ("input above the rate of output", "/v1/responses", [_CAPPED], (300_000, 200_000), 64 + 15),
    ("input for nothing", "/v1/responses", [_CAPPED], (0, 200_000), 64),
    ("everything for nothing", "/v1/responses", [_CAPPED], (0, 0), 64),
    ("output units of the item before those of its input", "/v1/responses", [_HI | {"units_out": 7}], (1, 1), 7 + 4),
    ("embeddings", "/v1/embeddings", [_EMBEDDED, _HI], (50_000, 50_000), 8),
)

_DONE: Final = {"status": "completed", "output": "ok", "usage": {}}
_FAILED: Final = {"status": "failed", "error": {"code": "backend_error"}, "units_in": 0, "units_out": 0}
_LEFT: Final = {"status": "not_run", "units_in": 0, "units_out": 0}
_RUN: Final = _DONE | {"custom_id": "a", "units_in": 11, "units_out": 30}

# name, items, rates of input and output, completion_tok
_RESULTS: Final[tuple[tuple[str, list[Any], tuple[int, int], int], ...]] = (
    ("all completed", [_RUN, _DONE | {"units_in": 4, "units_out": 5}], (100_000, 200_000), 35 + 8),
    ("one failed and one did not run", [_RUN, _FAILED, _LEFT | {"custom_id": "c"}], (100_000, 200_000), 30 + 6),
    ("completed embeddings", [_DONE | {"units_in": 4, "units_out": 0}], (50_000, 50_000), 4),
)

# name, items or the whole input
_BAD_INPUTS: Final[tuple[tuple[str, Any], ...]] = (
    ("another version of the form", {"svc_bundle": 2, "items": [_HI]}),
    ("a version as true", {"svc_bundle": True, "items": [_HI]}),
    ("no items", {"svc_bundle": 1, "items": []}),
    ("a member beside the items", {"svc_bundle": 1, "items": [_HI], "max_tokens": 5}),
    ("an item without input", {"svc_bundle": 1, "items": [{"custom_id": "a"}]}),
    ("an input that is a text", {"svc_bundle": 1, "items": [{"input": "hi"}]}),
    ("a member that no item has", {"svc_bundle": 1, "items": [_HI | {"model": "m"}]}),
    ("a custom_id of 65 characters", {"svc_bundle": 1, "items": [_HI | {"custom_id": "x" * 65}]}),
    ("output units below zero", {"svc_bundle": 1, "items": [_HI | {"units_out": -1}]}),
    ("a bundle in a bundle", {"svc_bundle": 1, "items": [{"input": {"svc_bundle": 1, "items": [_HI]}}]}),
)
_BAD_RESULTS: Final[tuple[tuple[str, Any], ...]] = (
    ("another status", _LEFT | {"status": "lost"}),
    ("a charge for an item that did not run", _LEFT | {"units_out": 1}),
    ("a completed item without output", {"status": "completed", "usage": {}, "units_in": 1, "units_out": 1}),
    ("a failed item without a code", _FAILED | {"error": {}}),
)


def cases() -> list[Case]:
    return [
        *({"name": name, "kind": "evidence", "evidence": given, "largest": most} for name, given, most in _EVIDENCE),
        *(_order(*row) for row in _ORDERS),
        *(
            _order(name, "/v1/responses", given["items"], (1, 1), None)
            | {"input": given, "refused": "malformed_bundle"}
            for name, given in _BAD_INPUTS
        ),
        _order("a rate for input alone", "/v1/responses", [_HI], (1, 0), None) | {"refused": "malformed_bundle"},
        _order("more units than an order holds", "/v1/responses", [_HI], (2**32, 1), None)
        | {"refused": "malformed_bundle"},
        *(_result(*row) for row in _RESULTS),
        *(_result(name, [given], (1, 1), None) | {"refused": "malformed_bundle"} for name, given in _BAD_RESULTS),
    ]


def _order(name: str, endpoint: str, items: list[Any], rates: tuple[int, int], units_out: int | None) -> Case:
    given = {"endpoint": endpoint, "input": _BUNDLE | {"items": items}}
    written = {"name": name, "kind": "order", **given, **_rates(rates)}
    return written if units_out is None else written | {"units_in": 1, "units_out": units_out}


def _result(name: str, items: list[Any], rates: tuple[int, int], completion_tok: int | None) -> Case:
    output = _BUNDLE | {"items": items}
    written = {"name": name, "kind": "result", "output": output, **_rates(rates)}
    return written if completion_tok is None else written | {"completion_tok": completion_tok}


def _rates(rates: tuple[int, int]) -> Case:
    return {"rate_in": str(rates[0]), "rate_out": str(rates[1])}


def files() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {
        "bundle.json": text_of("Bundles: their announcement, the units of their orders, and their results.", cases())
    }


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")
