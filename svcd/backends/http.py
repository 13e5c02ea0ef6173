"""Backend for servers with asynchronous jobs, such as image and video servers: submit a job, then poll it.

POST submit_url        → {id, status, …}           with an Idempotency-Key, so that a retried submit is one job
GET poll_url {id}      → {status, …}               until the status is one of done, failed, rejected
result_path            → the output, or URLs of files; with `download`, the files replace the URLs as base64
cancel_url {id}        cancels a job that svcd stops waiting for

The charge is `units_out`, because an image or a video has exactly the ordered size. Embeddings are not charged.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import attrs
import httpx
import structlog
import trio

from svc.wire.answers import open_response
from svcd.backends.attempts import AttemptPolicy, BackendActivity, TryAgain
from svcd.backends.backend import OnDelta
from svcd.backends.downloads import FileDownloader
from svcd.backends.http_answers import (
    error_code,
    read_body,
    read_error,
    read_json_object,
    resolve_url,
    to_sealable_json,
)
from svcd.backends.settings import HttpSettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput

log = structlog.get_logger(__name__)

_PROBE_TIMEOUT_S: Final = 10.0
_CANCEL_TIMEOUT_S: Final = 5.0


@attrs.define(slots=True)
class _HttpSubmission:
    """Submission of one job to the server.

    If the response to a submit is lost, the retry has the same idempotency key. After a failed job, the key changes,
    because the server would answer the old key with the failed job.
    """

    work: ModelWork
    body: bytes
    accepted_count: int = 0  # number of jobs that the server has created

    @property
    def idempotency_key(self) -> str:
        return f"{self.work.id}-{self.accepted_count}"


@attrs.frozen(slots=True)
class HttpBackend:
    """Backend of one server. The caller opens `client` with the settings' headers and timeouts, and closes it."""

    settings: HttpSettings
    client: httpx.AsyncClient

    async def run(self, work: ModelWork, on_delta: OnDelta | None = None) -> WorkOutput:
        submission = _HttpSubmission(work, json.dumps(self._build_request_body(work)).encode())
        settings = self.settings
        attempts = AttemptPolicy(settings.attempts, settings.backoff_s, settings.max_backoff_s)
        return await attempts.run(work, lambda activity: self._attempt(submission, activity))

    async def is_up(self) -> bool:
        try:
            url = self.settings.health_url or self.settings.submit_url
            async with open_response(self.client, "GET", url, timeout=_PROBE_TIMEOUT_S) as response:
                # Many servers answer a GET of submit_url with a 4xx. Only 401 and 403 mean that jobs are rejected.
                return response.status_code < 500 and response.status_code not in (401, 403)
        except httpx.RequestError:
            return False

    async def explain_unknown_model(self, model: str) -> str | None:
        return None  # the server has no list of models

    def _build_request_body(self, work: ModelWork) -> dict[str, object]:
        settings = self.settings
        body: dict[str, object] = {settings.input_key: work.input} if settings.input_key else dict(work.input)
        body |= settings.extra
        if settings.model_key:
            body[settings.model_key] = settings.models.get(work.model, work.model)
        return body

    async def _attempt(self, submission: "_HttpSubmission", activity: BackendActivity) -> WorkOutput:
        headers = {"content-type": "application/json", "idempotency-key": submission.idempotency_key}
        status = await self._request("POST", self.settings.submit_url, content=submission.body, headers=headers)
        job_id = self._read_job_id(status)
        submission.accepted_count += 1
        activity.has_reacted = True
        async with self._cancel_unless_ended(job_id) as ended:
            result = await self._poll_until_done(status, self._read_poll_url(status, job_id), ended)
            return await self._read_work_output(result, submission.work)

    def _read_job_id(self, status: dict[str, object]) -> str:
        job_id = self.settings.id_path.select_first(status)
        if not isinstance(job_id, str | int) or isinstance(job_id, bool) or job_id == "":
            raise WorkFailed(
                "backend_error", "the response to the submission has no id at id_path: correct id_path", True
            )
        return str(job_id)

    def _read_poll_url(self, status: dict[str, object], job_id: str) -> str:
        settings = self.settings
        if settings.poll_url is not None:
            return _insert_job_id(settings.poll_url, job_id)
        url = settings.poll_url_path.select_first(status) if settings.poll_url_path else None
        if not isinstance(url, str) or not url:
            raise WorkFailed(
                "backend_error", "the response to the submission has no URL at poll_url_path: correct it", True
            )
        return str(resolve_url(settings.submit_url, url))

    async def _poll_until_done(self, status: dict[str, object], poll_url: str, ended: trio.Event) -> dict[str, object]:
        """Poll until the job is done, and return the last response. Fail after `attempts` failed polls in a row."""
        settings = self.settings
        pause, failed_polls = settings.poll_s, 0
        while True:
            state = str(settings.status_path.select_first(status))
            if state in settings.done + settings.failed + settings.rejected:
                ended.set()
                self._require_done(state, status)
                return status
            await trio.sleep(pause)
            pause = min(pause * 1.5, settings.max_poll_s)
            try:
                status = await self._request("GET", poll_url)
                failed_polls = 0
            except TryAgain as failure:
                failed_polls += 1
                if failed_polls == settings.attempts:
                    raise
                pause = max(pause, failure.retry_after_s or 0)

    def _require_done(self, state: str, status: dict[str, object]) -> None:
        code = error_code({"code": status.get("error")}) or error_code(status)
        detail = f"the backend reported the job as {state}" + (f" with the code {code}" if code else "")
        if state in self.settings.rejected:
            raise WorkFailed("backend_error", detail)
        if state in self.settings.failed:
            raise TryAgain(detail)

    async def _read_work_output(self, status: dict[str, object], work: ModelWork) -> WorkOutput:
        found = self.settings.result_path.select(status)
        if not found:
            raise WorkFailed("backend_error", "the answer has no value at result_path: correct result_path", True)
        output = found[0] if self.settings.result_path.is_single else found
        if self.settings.download:
            downloads = FileDownloader(self.client, self.settings.submit_url, self.settings.max_answer_bytes)
            output = await downloads.embed_files(output)
        units = 0 if work.modality == "embeddings" else work.units_out
        return WorkOutput(to_sealable_json(output), units, {"units": units})

    async def _request(self, method: str, url: str, **request: Any) -> dict[str, object]:
        # Allow the full length even with `download`, because the answer may contain the files in data: URLs.
        max_length = self.settings.max_answer_bytes
        try:
            async with open_response(self.client, method, url, **request) as response:
                if not response.is_success:
                    raise await read_error(response)
                return read_json_object(await read_body(response, max_length))
        except httpx.RequestError as broken:
            raise TryAgain(f"the backend did not answer: {type(broken).__name__}") from None

    @asynccontextmanager
    async def _cancel_unless_ended(self, job_id: str) -> AsyncIterator[trio.Event]:
        ended = trio.Event()
        try:
            yield ended
        finally:
            if self.settings.cancel_url is not None and not ended.is_set():
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _CANCEL_TIMEOUT_S):
                    await self._cancel(_insert_job_id(self.settings.cancel_url, job_id))

    async def _cancel(self, url: str) -> None:
        try:
            async with open_response(self.client, self.settings.cancel_method, url) as response:
                log.info("backend job cancelled", status=response.status_code)
        except httpx.RequestError as broken:
            log.warning("backend job not cancelled", error=type(broken).__name__)


def _insert_job_id(url_template: str, job_id: str) -> str:
    return url_template.replace("{id}", quote(job_id, safe=""))
