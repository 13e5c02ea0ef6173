"""Submit a job to a server and poll it until it is done, as image and video servers work.

    POST submit_url        → {id, status, …}           under an Idempotency-Key, so that a repeated submit is one job
    GET poll_url {id}      → {status, …}               until the status is one of done, failed, rejected
    result_path            → the output, or addresses of files, which are downloaded as base64
    cancel_url {id}        cancels a job that is given up, because its client is refunded

The charge is always `units_out`, because an image or a video has exactly the ordered shape.
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

from svc.wire.answers import opened
from svcd.backends.attempts import Attempts, Signs, TryAgain
from svcd.backends.downloads import Downloads
from svcd.backends.http_answers import address_in, error_code, for_the_seal, read_body, read_error, read_object
from svcd.backends.settings import HttpSettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput

log = structlog.get_logger(__name__)

_PROBE_TIMEOUT_S: Final = 10.0
_CANCEL_SECONDS: Final = 5.0


@attrs.define(slots=True)
class _HttpSubmission:
    """Submission of one job.

    If the answer to a submit is lost, the submit is retried with the same idempotency key. After a failed job the key
    changes, because the server would repeat the failure for the old key.
    """

    work: ModelWork
    body: bytes
    named: int = 0

    @property
    def key(self) -> str:
        return f"{self.work.id}-{self.named}"


@attrs.frozen(slots=True)
class HttpBackend:
    """Backend of one server. `client` has the settings' headers and timeouts; the caller closes it."""

    settings: HttpSettings
    client: httpx.AsyncClient

    async def run(self, work: ModelWork) -> WorkOutput:
        submission = _HttpSubmission(work, json.dumps(self._body(work)).encode())
        settings = self.settings
        attempts = Attempts(settings.attempts, settings.backoff_s, settings.max_backoff_s)
        return await attempts.run(work, lambda signs: self._attempt(submission, signs))

    async def is_up(self) -> bool:
        try:
            url = self.settings.health_url or self.settings.submit_url
            async with opened(self.client, "GET", url, timeout=_PROBE_TIMEOUT_S) as response:
                # Many servers answer a GET of submit_url with a 4xx. Only 401 and 403 mean that jobs are rejected.
                return response.status_code < 500 and response.status_code not in (401, 403)
        except httpx.RequestError:
            return False

    async def unknown_name(self, model: str) -> str | None:
        return None  # these servers have no list of names

    def _body(self, work: ModelWork) -> dict[str, object]:
        settings = self.settings
        body: dict[str, object] = {settings.input_key: work.input} if settings.input_key else dict(work.input)
        body |= settings.extra
        if settings.model_key:
            body[settings.model_key] = settings.models.get(work.model, work.model)
        return body

    async def _attempt(self, submission: "_HttpSubmission", signs: Signs) -> WorkOutput:
        headers = {"content-type": "application/json", "idempotency-key": submission.key}
        status = await self._ask("POST", self.settings.submit_url, content=submission.body, headers=headers)
        job = self._name(status)
        submission.named += 1
        signs.of_life = True
        async with self._cancelled_unless_ended(job) as ended:
            result = await self._follow(status, self._poll_url(status, job), ended)
            return await self._collect(result, submission.work)

    def _name(self, status: dict[str, object]) -> str:
        job = self.settings.id_path.first(status)
        if not isinstance(job, str | int) or isinstance(job, bool) or job == "":
            raise WorkFailed("backend_error", "the response to the submission has no id at id_path", True)
        return str(job)

    def _poll_url(self, status: dict[str, object], job: str) -> str:
        settings = self.settings
        if settings.poll_url is not None:
            return _with_id(settings.poll_url, job)
        url = settings.poll_url_path.first(status) if settings.poll_url_path else None
        if not isinstance(url, str) or not url:
            raise WorkFailed("backend_error", "the response to the submission has no URL at poll_url_path", True)
        return str(address_in(settings.submit_url, url))

    async def _follow(self, status: dict[str, object], poll_url: str, ended: trio.Event) -> dict[str, object]:
        """Poll until the job is done, and return the last answer. Failed polls are retried a few times."""
        settings = self.settings
        pause, misses = settings.poll_s, 0
        while True:
            state = str(settings.status_path.first(status))
            if state in settings.done + settings.failed + settings.rejected:
                ended.set()
                self._judge(state, status)
                return status
            await trio.sleep(pause)
            pause = min(pause * 1.5, settings.max_poll_s)
            try:
                status = await self._ask("GET", poll_url)
                misses = 0
            except TryAgain as miss:
                misses += 1
                if misses == settings.attempts:
                    raise
                pause = max(pause, miss.after or 0)

    def _judge(self, state: str, status: dict[str, object]) -> None:
        code = error_code({"code": status.get("error")}) or error_code(status)
        detail = f"the backend ended the job as {state} {code}".rstrip()
        if state in self.settings.rejected:
            raise WorkFailed("backend_error", detail)
        if state in self.settings.failed:
            raise TryAgain(detail)

    async def _collect(self, status: dict[str, object], work: ModelWork) -> WorkOutput:
        found = self.settings.result_path.find(status)
        if not found:
            raise WorkFailed("backend_error", "the answer holds nothing at result_path", True)
        output = found[0] if self.settings.result_path.is_single else found
        if self.settings.download:
            downloads = Downloads(self.client, self.settings.submit_url, self.settings.max_answer_bytes)
            output = await downloads.carried(output)
        units = 0 if work.modality == "embeddings" else work.units_out
        return WorkOutput(for_the_seal(output), units, {"units": units})

    async def _ask(self, method: str, url: str, **request: Any) -> dict[str, object]:
        max_length = self.settings.max_answer_bytes  # also with `download`: answers may contain data: URLs
        try:
            async with opened(self.client, method, url, **request) as response:
                if not response.is_success:
                    raise await read_error(response)
                return read_object(await read_body(response, max_length))
        except httpx.RequestError as broken:
            raise TryAgain(f"the backend did not answer: {type(broken).__name__}") from None

    @asynccontextmanager
    async def _cancelled_unless_ended(self, job: str) -> AsyncIterator[trio.Event]:
        ended = trio.Event()
        try:
            yield ended
        finally:
            if self.settings.cancel_url is not None and not ended.is_set():
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _CANCEL_SECONDS):
                    await self._cancel(_with_id(self.settings.cancel_url, job))

    async def _cancel(self, url: str) -> None:
        try:
            async with opened(self.client, self.settings.cancel_method, url) as response:
                log.info("backend job cancelled", status=response.status_code)
        except httpx.RequestError as broken:
            log.warning("backend job not cancelled", error=type(broken).__name__)


def _with_id(template: str, job: str) -> str:
    return template.replace("{id}", quote(job, safe=""))
