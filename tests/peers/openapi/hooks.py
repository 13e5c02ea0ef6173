"""Hooks of schemathesis, which add requests with valid signatures to the generated ones.

PREPARED names a JSON file written by the test: bodies by operation, each with its acceptable statuses, and ids that
exist. Sent bodies are written to PREPARED_SENT. schemathesis loads this file in a separate environment, so it cannot
import the project.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import schemathesis

PREPARED: dict[str, Any] = json.loads(Path(os.environ["PREPARED"]).read_text("utf-8"))
SENT = Path(os.environ["PREPARED_SENT"])
_calls: Counter[str] = Counter()
_sent: Counter[str] = Counter()
_due: dict[str, list[int]] = {}


@schemathesis.hook
def before_call(context: Any, case: Any, **kwargs: Any) -> None:
    operation, generated = f"{case.operation.method.upper()} {case.operation.path}", case.meta
    # docs/protocol says that an empty query parameter is the same as none. A schema cannot express this.
    for name, value in (case.query or {}).items():
        if value is None or value in ("", [], {}):
            case.query[name] = "-"
    # The same holds for a header.
    key = (case.headers or {}).get("idempotency-key")
    if key is not None and not str(key).strip():
        case.headers["idempotency-key"] = "no key"
    if generated is None or not generated.generation.mode.is_positive:
        return
    _calls[operation] += 1
    waiting = PREPARED.get(operation, [])
    # In the coverage phase, replace only every second request, so that each value of a schema is covered.
    if _sent[operation] < len(waiting) and (generated.phase.name.value != "coverage" or _calls[operation] % 2):
        prepared = waiting[_sent[operation]]
        _sent[operation] += 1
        case.body, case.media_type = prepared["body"], "application/json"
        for name in ("idempotency-key", "prefer"):
            (case.headers or {}).pop(name, None)
        if "id" in prepared:
            case.path_parameters = {"id": prepared["id"]}
        _due[case.id] = prepared["status"]
        SENT.write_text(json.dumps(_sent), "utf-8")
    elif case.path_parameters and generated.phase.name.value == "fuzzing" and _calls[operation] % 2:
        known = PREPARED["ids"].get(case.operation.path)
        if known:
            [name] = case.path_parameters
            case.path_parameters = {name: known[_calls[operation] // 2 % len(known)]}


@schemathesis.check
def prepared_requests_hold(context: Any, response: Any, case: Any) -> None:
    due = _due.get(case.id)
    if due is not None and response.status_code not in due:
        raise AssertionError(f"a valid request got {response.status_code}, expected {due}: {response.text[:500]}")
