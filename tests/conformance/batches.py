"""Checks of batches, with files that order nothing: requests, plans, lists, idempotency, ends, error
lines."""

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import anyio
import attrs

from common.api.batches import Batch, BatchAsOf, BatchList, ErrorLine, PlanShape
from common.api.shapes import Digits
from common.api.states import ENDED_BATCH_STATUSES
from tests.conformance.asking import Answer, Body, TriedCoordinator, json_lines, not_like, not_refused
from tests.conformance.buyer import Buyer
from tests.conformance.uploads import upload

_SPEC: Final = "the specification, "
_BAD: Final = "invalid_request_error"
_BATCHES: Final = "protocol/guide.md#batches"
_SECONDS: Final = 60.0  # timeout of a batch
_POLL: Final = 0.3


async def until_ended(coordinator: TriedCoordinator, buyer: Buyer, batch: str) -> Answer:
    """Return the ended batch, or its last state after the timeout."""
    until, answer = time.monotonic() + _SECONDS, Answer(0, {}, b"", None, "no answer")
    while time.monotonic() < until:
        answer = await coordinator.get(f"/v1/batches/{batch}", headers=buyer.session)
        if answer.fields.get("status") in ENDED_BATCH_STATUSES:
            break
        await anyio.sleep(_POLL)
    return answer


@attrs.frozen
class TriedBatches:
    """Checks of batches. They leave two batches."""

    coordinator: TriedCoordinator
    buyer: Buyer
    other: Buyer

    def _judge(self, area: str, tried: str, expected: str, wrong: str | None, page: str) -> None:
        self.coordinator.judge(area, tried, expected, wrong, page)

    async def run(self) -> None:
        await self._batch_requests()
        uploaded = await upload(self.coordinator, self.buyer, "batch", _LINES)
        body = {"input_file_id": uploaded.fields.get("id"), "endpoint": "/v1/responses", "completion_window": "1h"}
        key = {"idempotency-key": secrets.token_hex(16)}
        headers = self.buyer.session | key
        made = await self.coordinator.post("/v1/batches", {**body, "metadata": {"run": "1"}}, headers=headers)
        wrong = not_like(made, 200, Batch)
        if wrong is None and (made.fields["status"], made.fields["metadata"]) != ("validating", {"run": "1"}):
            wrong = str(made)
        if wrong is None and made.fields["expires_at"] - made.fields["created_at"] != 3600:
            wrong = f"expires_at {made.fields['expires_at']}, created_at {made.fields['created_at']}"
        expected = "200, validating, its metadata, expires_at an hour after created_at"
        self._judge("batches", "POST /v1/batches", expected, wrong, _SPEC + "4.8")
        if wrong is not None:
            return
        batch = made.fields["id"]
        again = await self.coordinator.post("/v1/batches", {**body, "metadata": {"run": "1"}}, headers=headers)
        wrong = not_like(again, 200) or (None if again.fields.get("id") == batch else str(again))
        page = "protocol/guide.md#waiting-and-answers-that-were-lost"
        self._judge("batches", "the same with its idempotency-key", "200, the same batch", wrong, page)
        changed = await self.coordinator.post("/v1/batches", {**body, "metadata": {"run": "2"}}, headers=headers)
        wrong = not_refused(changed, (400), _BAD, code="idempotency_key_reused")
        self._judge("batches", "another body with the same key", "400 idempotency_key_reused", wrong, page)
        other = await self.coordinator.get(f"/v1/batches/{batch}", headers=self.other.session)
        self._judge("batches", "another's batch", "404 not_found", not_refused(other, 404, "not_found"), _SPEC + "4.8")
        await self._lists(batch)
        await self._ends(batch)

    async def _batch_requests(self) -> None:
        good = {"input_file_id": "file-0", "endpoint": "/v1/responses", "completion_window": "1h"}
        pairs = {str(n): "x" for n in range(17)}
        spoiled: Sequence[tuple[str, Body, object]] = (
            ("batch at another endpoint", {**good, "endpoint": "/v1/chat/completions"}, "invalid_endpoint"),
            ("batch with another window", {**good, "completion_window": "2h"}, "invalid_completion_window"),
            ("batch of a file that is none", good, "invalid_input_file"),
            ("metadata of 17 pairs", {**good, "metadata": pairs}, None),
            ("metadata with a key of 65 characters", {**good, "metadata": {"k" * 65: "v"}}, None),
            ("metadata with a number", {**good, "metadata": {"k": 1}}, None),
        )
        for tried, body, code in spoiled:
            answer = await self.coordinator.post("/v1/batches", body, headers=self.buyer.session)
            wrong = not_refused(answer, 400, _BAD, code=code)
            self._judge("batches", tried, f"400 {code or ''}".strip(), wrong, _SPEC + "4.8")
        plan = {"model_id": 1, "lines": 2, "units_in": 100, "units_out": 100}
        answer = await self.coordinator.post(
            "/v1/batches", {"completion_window": "1h", "models": [plan]}, headers=self.buyer.session
        )
        wrong = not_like(answer, 402, PlanShape[Digits])
        if wrong is None:
            one: Body = (answer.fields["plan"] or [{"allocation": [], "lines": "0"}])[0]
            planned = sum(int(share["lines"]) for share in one["allocation"])
            wrong = None if one["lines"] == "2" and planned <= 2 else str(answer)
        self._judge("batches", "plan", "402 {plan}, no more lines than were asked for", wrong, _BATCHES)

    async def _lists(self, batch: str) -> None:
        """List two batches, to check order and cursor."""
        uploaded = await upload(self.coordinator, self.buyer, "batch", b'{"one": "line"}')
        body = {"input_file_id": uploaded.fields.get("id"), "endpoint": "/v1/responses", "completion_window": "24h"}
        second = (await self.coordinator.post("/v1/batches", body, headers=self.buyer.session)).fields.get("id")
        pages = [
            await self.coordinator.get(f"/v1/batches?limit=1{after}", headers=self.buyer.session)
            for after in ("", f"&after={second}")
        ]
        wrong = not_like(pages[0], 200, BatchList) or not_like(pages[1], 200, BatchList)
        if wrong is None:
            got = [(page.fields["last_id"], page.fields["has_more"]) for page in pages]
            wrong = None if got == [(second, True), (batch, False)] else f"{got}"
        expected = "newest first; last_id as after gives the next"
        self._judge("batches", "GET /v1/batches page by page", expected, wrong, _SPEC + "4.8")
        empty = await self.coordinator.get("/v1/batches", headers=self.other.session)
        wrong = not_like(empty, 200, BatchList) or (None if empty.fields["data"] == [] else str(empty))
        self._judge("batches", "GET /v1/batches of who has none", "200, an empty list", wrong, _SPEC + "4.8")

    async def _ends(self, batch: str) -> None:
        answer = await until_ended(self.coordinator, self.buyer, batch)
        wrong = not_like(answer, 200, BatchAsOf)
        if wrong is None:
            counts, fields = answer.fields["request_counts"], answer.fields
            total = {"completed": 0, "failed": len(_CODES), "total": len(_CODES)}
            if (fields["status"], counts, fields["output_file_id"]) != ("completed", total, None):
                wrong = str(answer)
        expected = "completed, every line failed, no output file"
        self._judge("batches", "end of a batch whose lines order nothing", expected, wrong, _BATCHES)
        if wrong is None:
            await self._error_lines(batch, str(answer.fields["error_file_id"]))
        answer = await self.coordinator.ask("POST", f"/v1/batches/{batch}/cancel", headers=self.buyer.session)
        wrong = not_refused(answer, 400, _BAD, code="batch_not_cancellable")
        self._judge("batches", "cancel of a batch that has ended", "400 batch_not_cancellable", wrong, _SPEC + "4.8")

    async def _error_lines(self, batch: str, file: str) -> None:
        content = await self.coordinator.get(f"/v1/files/{file}/content", headers=self.buyer.session)
        try:
            lines = json_lines(content.content)
        except ValueError as odd:
            self._judge("batches", "error file", "JSON lines", str(odd), _BATCHES)
            return
        wrong = next((misfit for line in lines if (misfit := _not_error_line(line, batch)) is not None), None)
        codes = {line["svc"]["line"]: line["error"]["code"] for line in lines} if wrong is None else {}
        expected = f"one line for each, id batch_req_{batch}_<line>, codes {_CODES}"
        wrong = wrong or (None if codes == _CODES else f"{codes}")
        self._judge("batches", "error file", expected, wrong, _BATCHES)


_LINES: Final = b"\n".join(
    (
        b"no json",
        b'["no", "object"]',
        b"",
        b'{"model_id": 1}',
        b'{"url": "/v1/embeddings"}',
    )
)
# By line number. Blank lines are counted but are not lines of the batch.
_CODES: Final = {1: "invalid_json", 2: "invalid_json", 4: "invalid_line", 5: "endpoint_mismatch"}


def _not_error_line(line: Any, batch: str) -> str | None:
    answer = Answer(200, {}, json.dumps(line).encode(), line)
    if (wrong := not_like(answer, 200, ErrorLine)) is not None:
        return wrong
    named = line["id"] == f"batch_req_{batch}_{line['svc']['line']}"
    nulls = line.get("custom_id", 0) is None and line.get("response", 0) is None and "job_id" in line["svc"]
    return None if named and nulls else str(answer)
