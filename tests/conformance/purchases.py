"""Purchases by a wallet that may spend: an order that is cancelled, a job that runs, a batch of one line."""

import json
import time
from typing import Any, Final

import anyio
import attrs
import httpx

from common.api.batches import BatchAsOf, OutputLine
from common.api.jobs import Cancelled, ClientJob, PostedShape
from common.api.states import ENDED_JOB_STATUSES
from common.box import PublicKey, SecretKey
from common.envelope import Envelope, ResultBody
from common.key_derivation import result_key_from_signature
from common.messages.sessions import ResultKey
from common.refusal import Refused
from common.scalars import hex_of, read_hex
from common.sealed_result import open_result
from tests.conformance.asking import Answer, Body, TriedCoordinator, json_lines, not_like, not_refused
from tests.conformance.batches import until_ended
from tests.conformance.buyer import Buyer
from tests.conformance.quotes import Quotes
from tests.conformance.sessions import sign_in
from tests.conformance.uploads import upload

_SPEC: Final = "the specification, "
_BAD: Final = "invalid_request_error"
_JOB_SECONDS: Final = 120.0
_LIFE: Final = "protocol/guide.md#the-life-of-a-job"
_LOST: Final = "protocol/guide.md#waiting-and-answers-that-were-lost"


@attrs.define
class Purchases:
    """Three orders of a funded `buyer`: one cancelled, one run, one run in a batch. Needs a provider."""

    coordinator: TriedCoordinator
    quotes: Quotes
    model: str
    gateway: str | None

    @property
    def buyer(self) -> Buyer:
        return self.quotes.buyer

    async def run(self) -> None:
        await self._cancelled()
        candidate = await self._candidate()
        if candidate is None:
            for tried in ("a job", "a batch"):
                self.coordinator.report.leave("purchases", tried, "no provider sells this model now", _LIFE)
            return
        await self._bought(candidate)
        await self._batch(candidate)

    def _judge(self, tried: str, expected: str, wrong: str | None, page: str) -> None:
        self.coordinator.judge("purchases", tried, expected, wrong, page)

    async def _cancelled(self) -> None:
        """Reserve an order for a provider that does not exist, seal it to an unknown key, and cancel it at once. No
        money moves."""
        sealed, nobody = self._sealed(SecretKey.generate().public), 2**32 - 1
        _, job = await self._post("post of an order for nobody", sealed, rate_in=0, rate_out=1, designated=nobody)
        if job is None:
            return
        answers = [await self._cancel(job) for _ in range(2)]
        wrong = next((w for a in answers if (w := not_like(a, 200, Cancelled)) is not None), None)
        self._judge("cancel, and cancel again", "200 both times", wrong, _LIFE)
        ended = await self._until(job)
        wrong = None if ended.fields.get("status") == "cancelled" else str(ended)
        self._judge("job that was cancelled", "cancelled", wrong, _LIFE)

    async def _cancel(self, job: str) -> Answer:
        return await self.coordinator.post(f"/v1/jobs/{job}/cancel", self.buyer.cancel(job, int(time.time())))

    async def _candidate(self) -> Body | None:
        sizes = {"model_id": self.quotes.model_id, "sla_secs": 3600, "units_in": 1000, "units_out": 1000}
        found = (await self.coordinator.post("/v1/jobs", sizes)).fields.get("candidates") or [None]
        return found[0] if isinstance(found[0], dict) else None

    async def _bought(self, candidate: Body) -> None:
        container = self._sealed(PublicKey(read_hex(candidate["box_key"], 32, "box_key")))
        sent, job = await self._post("post of a designated order", container, **_terms(candidate))
        if job is None or sent is None:
            return
        again = await self.coordinator.post("/v1/jobs", sent)
        wrong = not_refused(again, 409, _BAD, code="DuplicateJob")
        self._judge("the same submission again", "409 DuplicateJob", wrong, _LOST)
        answer = await self._until(job)
        wrong = not_like(answer, 200, ClientJob)
        if wrong is None and answer.fields["status"] != "completed":
            wrong = f"status {answer.fields['status']}"
        if wrong is None and int(answer.fields["svc"]["completion_tok"]) > 1000:
            wrong = f"completion_tok {answer.fields['svc']['completion_tok']}"
        self._judge("job that was bought", "completed, completion_tok within units_out", wrong, _LIFE)
        if wrong is None:
            await self._read(job, str(answer.fields["result_cid"]))

    async def _read(self, job: str, result_cid: str) -> None:
        if self.gateway is None:
            self.coordinator.report.leave("purchases", "result", "no --gateway to read it from", _LIFE)
            return
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            fetched = await http.get(f"{self.gateway.rstrip('/')}/ipfs/{result_cid}")
        wrong = None if fetched.status_code == 200 else f"{fetched.status_code}"
        if wrong is None:
            chain, raw = self.buyer.chain, read_hex(job, 32, "job_id")
            try:
                body = ResultBody.parse(
                    open_result(self._result_key, chain.chain_id, chain.job_registry, raw, fetched.content)
                )
                wrong = None if body.job_id == raw else hex_of(body.job_id)
            except Refused as refusal:
                wrong = f"{refusal.code}: {refusal.message}"
        expected = "opens with the result key, and names the job"
        self._judge("result of the job that was bought", expected, wrong, "protocol/formats.md#sealed-result-v1")

    async def _batch(self, candidate: Body) -> None:
        await sign_in(self.coordinator, self.buyer)
        container = self._sealed(PublicKey(read_hex(candidate["box_key"], 32, "box_key")))
        order = self.buyer.order(container, model_id=self.quotes.model_id, **_terms(candidate))
        amount = int((await self.coordinator.post("/v1/jobs", order)).fields["quote"]["amount"])
        line = {**self.buyer.paid(order, amount, container), "url": "/v1/responses"}
        uploaded = await upload(self.coordinator, self.buyer, "batch", json.dumps(line).encode())
        body = {"input_file_id": uploaded.fields.get("id"), "endpoint": "/v1/responses", "completion_window": "1h"}
        made = await self.coordinator.post("/v1/batches", body, headers=self.buyer.session)
        answer = await until_ended(self.coordinator, self.buyer, str(made.fields.get("id")))
        wrong = not_like(answer, 200, BatchAsOf)
        if wrong is None and answer.fields["request_counts"] != {"completed": 1, "failed": 0, "total": 1}:
            wrong = str(answer)
        self._judge("batch of one line", "completed, one of one", wrong, "protocol/guide.md#batches")
        if wrong is None:
            file = answer.fields["output_file_id"]
            content = await self.coordinator.get(f"/v1/files/{file}/content", headers=self.buyer.session)
            lines = json_lines(content.content)
            told = Answer(200, {}, content.content, lines[0] if lines else None)
            wrong = not_like(told, 200, OutputLine[Any])
            if wrong is None and (len(lines), told.fields["svc"]["job_id"]) != (1, order["job_id"]):
                wrong = str(told)
            expected = "one line, with the job's id and its result's"
            self._judge("output file", expected, wrong, "protocol/guide.md#batches")

    # --- helpers ----------------------------------------------------------------------------------------------

    async def _post(self, tried: str, container: bytes, **terms: Any) -> tuple[Body | None, str | None]:
        order = self.buyer.order(container, model_id=self.quotes.model_id, **terms)
        quoted = await self.coordinator.post("/v1/jobs", order)
        wrong = self.quotes.not_a_quote(quoted, 402, order)
        if wrong is not None:
            self._judge(tried, "402, a quote", wrong, _SPEC + "4.6")
            return None, None
        sent = self.buyer.paid(order, int(quoted.fields["quote"]["amount"]), container)
        answer = await self.coordinator.post("/v1/jobs", sent)
        wrong = not_like(answer, 201, PostedShape)
        if wrong is None and answer.fields["job_id"] != order["job_id"]:
            wrong = str(answer)
        self._judge(tried, "201, the job id that was sent", wrong, _SPEC + "4.6")
        return (sent, str(order["job_id"])) if wrong is None else (None, None)

    async def _until(self, job: str) -> Answer:
        """Return the ended job, or its last state after the timeout."""
        until, pause, answer = time.monotonic() + _JOB_SECONDS, 0.25, Answer(0, {}, b"", None, "no answer")
        while time.monotonic() < until:
            answer = await self.coordinator.get(f"/v1/jobs/{job}")
            if answer.fields.get("status") in ENDED_JOB_STATUSES:
                break
            await anyio.sleep(pause)
            pause = min(5.0, pause * 1.5)
        return answer

    def _sealed(self, recipient: PublicKey) -> bytes:
        text: dict[str, object] = {"input": "conformance", "max_output_tokens": 1000}
        return self.buyer.container(
            recipient, Envelope(self.buyer.wallet.address, self.model, text, self._result_key.public).encode()
        )

    @property
    def _result_key(self) -> SecretKey:
        return result_key_from_signature(
            self.buyer.wallet.sign(self.buyer.domains.results.digest(ResultKey("result key")))
        )


def _terms(candidate: Body) -> Body:
    return {
        "rate_in": int(candidate["rate_in"]),
        "rate_out": int(candidate["rate_out"]),
        "designated": int(candidate["provider_id"]),
        "units_in": 1000,
        "units_out": 1000,
    }
