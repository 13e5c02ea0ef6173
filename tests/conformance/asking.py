"""Requests to a coordinator under test, and properties of every response."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import httpx

from common import strict_json
from common.api.error_bodies import Error
from common.refusal import Refused
from tests.conformance.verdicts import Report, misfit, shortened

Body = dict[str, Any]
PARTIES: Final = "protocol/guide.md#parties-and-calls"
_ANY: Final = object()


@attrs.frozen
class Answer:
    """One response. `body` is its JSON, or None. `no_answer` explains a missing response."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    body: Any
    no_answer: str | None = None

    @property
    def fields(self) -> Body:
        return self.body if isinstance(self.body, dict) else {}

    def __str__(self) -> str:
        if self.no_answer is not None:
            return self.no_answer
        return f"{self.status} {shortened(self.content.decode('utf-8', 'replace'))}"


def not_like(answer: Answer, status: int, shape: Any = None) -> str | None:
    """Describe how a response differs from this status and shape. None if it matches."""
    if answer.no_answer is not None or answer.status != status:
        return str(answer)
    return None if shape is None else misfit(answer.body, shape)


def not_refused(
    answer: Answer,
    status: int,
    type_: str | Sequence[str],
    *,
    code: object = _ANY,
    param: object = _ANY,
    retryable: bool = False,
) -> str | None:
    """Describe how a response differs from this error. None if it matches."""
    if (wrong := not_like(answer, status, Error)) is not None:
        return wrong
    error = answer.fields["error"]
    types = (type_,) if isinstance(type_, str) else type_
    if error["type"] not in types:
        return f"type {error['type']}"
    for name, wanted in (("code", code), ("param", param)):
        if wanted is not _ANY and error[name] != wanted:
            return f"{name} {error[name]!r}"
    said = answer.headers.get("x-svc-retryable")
    return None if said == str(retryable).lower() else f"x-svc-retryable: {said}"


@attrs.define
class TriedCoordinator:
    """The coordinator under test. Requests are sent once. A broken connection counts as a response."""

    http: httpx.AsyncClient
    report: Report
    request_ids: list[str | None] = attrs.field(factory=list)
    unmarked: list[str] = attrs.field(factory=list)  # errors without x-svc-retryable

    async def ask(self, method: str, path: str, **request: Any) -> Answer:
        try:
            response = await self.http.request(method, path, **request)
        except httpx.HTTPError as failure:
            return Answer(0, {}, b"", None, f"no answer ({type(failure).__name__})")
        except httpx.InvalidURL as failure:
            return Answer(0, {}, b"", None, f"no URL ({failure})")
        self.request_ids.append(response.headers.get("x-request-id"))
        body = _json(response.content)
        coded = isinstance(body, dict) and isinstance(body.get("error"), dict)
        exempt = coded and body["error"].get("code") == "model_not_found"  # the specification omits the header
        if coded and not exempt and response.headers.get("x-svc-retryable") not in ("true", "false"):
            self.unmarked.append(f"{method} {path}: {response.status_code}")
        return Answer(response.status_code, response.headers, response.content, body)

    async def get(self, path: str, **request: Any) -> Answer:
        return await self.ask("GET", path, **request)

    async def post(self, path: str, body: Body, **request: Any) -> Answer:
        return await self.ask("POST", path, json=body, **request)

    def judge(self, area: str, tried: str, expected: str, wrong: str | None, page: str) -> None:
        self.report.judge(area, tried, expected, wrong, page)

    def judge_headers(self) -> None:
        """Check the headers of all responses at the end of a run."""
        missing = sum(each is None for each in self.request_ids)
        twice = len(self.request_ids) - missing - len({each for each in self.request_ids if each is not None})
        wrong = f"{missing} of {len(self.request_ids)} without it" if missing else f"{twice} twice" if twice else None
        expected = "every answer has an x-request-id, no two the same"
        self.judge("headers", "request ids of the whole run", expected, wrong, "the specification, 4.1")
        wrong = "; ".join(self.unmarked[:3]) or None
        expected = "every error has x-svc-retryable: true or false"
        self.judge("headers", "retryable header of every error of the run", expected, wrong, PARTIES)


def _json(content: bytes) -> Any:
    try:
        return strict_json.parse(content)
    except Refused:
        return None


def json_lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines() if line.strip()]
