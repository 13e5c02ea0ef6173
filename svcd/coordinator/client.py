"""Client of the coordinator's routes that providers use.

A read returns a value, or raises `Unavailable` if it fails. An op returns an outcome, even if the op fails.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final, TypeVar

import attrs
import httpx

from common.address_book import AddressBook
from common.api import limits
from common.api.chain import DeploymentFields, SessionShape, reported_book
from common.api.escrow import ReleasedShape
from common.api.fields import BYTES32
from common.api.files import FileFields
from common.api.market import AskShape, Floor, ModelDetails, ModelFields, ProviderFields
from common.api.shapes import read_shape
from common.quotes import FeeTerms
from common.refusal import Refused
from common.scalars import hex_of, read_base64, read_uint
from common.strict_json import parse
from common.tracing import spans
from svc.wire.answers import MAX_CONTENT_BYTES
from svc.wire.pages import MAX_LIST_BYTES, read_pages
from svc.wire.sessions import Sessions, authorization
from svc.wire.transport import ApiError, ConnectionFailed, RetryPolicy, Transport, read_error
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.coordinator.op_signer import RequestBody
from svcd.coordinator.outcomes import (
    AsksPublished,
    ChainRefused,
    CoordinatorRefusal,
    OpMined,
    OpOutcome,
    OpPending,
    OpStored,
    PublishOutcome,
    ReleasedKey,
    ReleaseOutcome,
    Unanswered,
    Uploaded,
    UploadOutcome,
)
from svcd.coordinator.sessions import SignInRefused, sign_in
from svcd.journal.book_row import Job, PendingOffer

_MAX_SEALED_KEY_BYTES: Final = 256
_WINDOWS_KEY: Final = "windows"
_ANSWER_TIMEOUT_S: Final = 180.0  # for a whole response, if the caller sets no deadline
_OP_STATUSES: Final = frozenset({201, 202, 409, 504})
_QUOTE_STATUSES: Final = frozenset({200, 402})

T = TypeVar("T")


# Shapes of responses: a registry entry, an ask and others. Unknown members of a response are ignored.
ProviderRecord = ProviderFields[int]
PostedAsk = AskShape[int]
_Deployment = DeploymentFields[int]
_Model = ModelFields[int]
_Floor = Floor[int]
Floors = dict[tuple[int, int], tuple[int, int]]  # rate_in and rate_out by model id and window


def open_transport(http: httpx.AsyncClient, clock: Clock | None = None) -> Transport:
    """Return the transport to the coordinator at `base_url` of `http`. The coordinator's responses correct `clock`."""
    return Transport(http, clock or Clock(), RetryPolicy(after_proxy=True), attempt_timeout_s=_ANSWER_TIMEOUT_S)


async def read_deployment(transport: Transport) -> AddressBook:
    """Return the chain and contracts of the market. Read them before the sign-in, because signatures cover them.

    Raise `Unavailable` if the read fails, and `Refused` for a malformed response.
    """
    return reported_book(read_shape(_Deployment, await _read_json(transport, "/evm/chain")))


@attrs.frozen(slots=True)
class MarketReader:
    """Reads a coordinator's public data, which needs no session."""

    transport: Transport

    async def read_model_ids(self) -> dict[str, int]:
        """Return the id of each enabled model, by name."""
        return {name: model.model_id for name, model in (await self.read_catalogue()).items()}

    async def read_catalogue(self) -> dict[str, ModelDetails[int]]:
        """Return the details of each enabled model, by name."""
        rows = [read_shape(_Model, row) for row in await self._read_pages("/v1/models", "data")]
        return {row.id: row.svc for row in rows if row.svc.enabled}

    async def read_fee_terms(self) -> FeeTerms:
        """Return the market's current fees."""
        chain = await self._read_chain()
        return FeeTerms(read_uint(chain.get("fee_bps"), 16, "fee_bps"), read_uint(chain.get("gas_fee"), 128, "gas_fee"))

    async def read_gateway_url(self) -> str | None:
        """Return the URL of a storage gateway, or None if the coordinator reports none."""
        gateway = (await self._read_chain()).get("gateway_url")
        return gateway if isinstance(gateway, str) and gateway else None

    async def read_floors(self) -> Floors:
        """Return the lowest published rates of each model and window."""
        rows = [read_shape(_Floor, row) for row in await self._read_pages("/evm/asks/floors", "floors")]
        return {(row.model_id, row.sla): (row.rate_in, row.rate_out) for row in rows}

    async def read_ended_jobs(self, provider_id: int) -> list[dict[str, object]]:
        """Return the job book's rows of this provider's settled, failed and reclaimed jobs."""
        rows: list[dict[str, object]] = []
        for state in ("Settled", "Cancelled"):
            query = {"state": state, "provider": str(provider_id)}
            rows += await self._read_pages("/evm/jobs", "jobs", query, MAX_CONTENT_BYTES)
        return rows

    async def read_windows(self) -> frozenset[int] | None:
        """Return the windows that the market accepts, in seconds, or None if the coordinator does not list them."""
        windows = (await self._read_chain()).get(_WINDOWS_KEY)
        if not isinstance(windows, list):
            return None
        return frozenset(read_uint(window, 32, _WINDOWS_KEY) for window in windows)

    async def has_recent_poll(self, provider_id: int) -> bool:
        """Return True if a daemon polled recently as this provider.

        A quote lists a provider as a candidate only after a recent poll.
        """
        for ask in {ask.model_id: ask for ask in await self.read_provider_asks(provider_id)}.values():
            demand = {"model_id": ask.model_id, "sla_secs": ask.sla, "units_in": 1, "units_out": 1}
            try:
                quote = await self.transport.send(
                    "POST", "/v1/jobs", json={**demand, "designated": provider_id}, expected=_QUOTE_STATUSES
                )
            except (ApiError, ConnectionFailed):
                continue
            listed = _read_body_members(quote).get("candidates")
            rows = listed if isinstance(listed, list) else []
            if any(isinstance(row, dict) and str(row.get("provider_id")) == str(provider_id) for row in rows):
                return True
        return False

    async def read_provider(self, provider_id: int) -> ProviderRecord:
        return read_shape(ProviderRecord, await _read_json(self.transport, f"/evm/providers/{provider_id}"))

    async def read_job(self, job_id: bytes) -> Job | None:
        """Return a job, or None if the coordinator does not know the job."""
        try:
            return Job.read(_read_object(await _read_json(self.transport, f"/evm/jobs/{hex_of(job_id)}")))
        except Unavailable as failed:
            if failed.status == httpx.codes.NOT_FOUND:
                return None
            raise

    async def read_claimed_jobs(self, provider_id: int) -> list[Job]:
        rows = await self._read_pages("/evm/jobs", "jobs", {"state": "Claimed", "provider": str(provider_id)})
        return [Job.read(row) for row in rows]

    async def read_provider_asks(self, provider_id: int) -> list[PostedAsk]:
        return [ask for ask in await self.read_asks() if ask.provider_id == provider_id]

    async def read_asks(self) -> list[PostedAsk]:
        return [read_shape(PostedAsk, row) for row in await self._read_pages("/evm/asks", "asks")]

    async def _read_chain(self) -> dict[str, object]:
        return _read_object(await _read_json(self.transport, "/evm/chain"))

    async def _read_pages(
        self, path: str, key: str, query: Mapping[str, str] | None = None, max_bytes: int = MAX_LIST_BYTES
    ) -> list[dict[str, object]]:
        return await _read_or_unavailable(
            path, lambda: read_pages(self.transport, path, key, dict, limit=None, params=query, max_bytes=max_bytes)
        )


@attrs.frozen(slots=True)
class PollResult:
    """Jobs that a poll returned. The posts of `pending_offers` are not mined yet.

    `indexed_block` is the last block in the index. `trace_contexts` has the trace contexts of the orders, by job id.
    """

    jobs: list[Job]
    pending_offers: list[PendingOffer] = attrs.field(factory=list)
    indexed_block: int = 0
    trace_contexts: dict[bytes, str] = attrs.field(factory=dict)


@attrs.frozen(slots=True)
class Coordinator(MarketReader):
    """Client of a signed-in provider, with polls and ops in addition to the public data."""

    sessions: Sessions

    async def poll(
        self, model_id: int, free_slots: int, lowest_rates: Mapping[str, int], wait_s: int = 0
    ) -> PollResult:
        """Report the number of free slots, and return at most that many leased jobs.

        `lowest_rates` has the lowest accepted `rate_in` and `rate_out`. Without a job, the coordinator waits up to
        `wait_s` seconds before it responds.
        """
        query = {
            "state": "Open",
            "model": str(model_id),
            "free": str(free_slots),
            "pending": "1",
            "limit": str(min(limits.MAX_PAGE_ROWS, max(1, free_slots))),
        }
        query |= {f"min_{name}": str(rate) for name, rate in lowest_rates.items()}
        if wait_s:
            query["wait"] = str(wait_s)
        session = await self._current_session()
        headers = authorization(session)
        try:
            # Do not retry, because the caller polls again in any case.
            fields = _read_object(
                await _read_json(self.transport, "/evm/jobs", params=query, headers=headers, retry=False)
            )
        except Unavailable as failed:
            if failed.status == httpx.codes.UNAUTHORIZED:
                self.sessions.forget(session)
            raise
        rows, pending = fields.get("jobs"), fields.get("pending", [])
        if not isinstance(rows, list) or not isinstance(pending, list):
            raise Unavailable("the response to the poll must have lists of jobs and pending jobs", 200)
        jobs = [Job.read(row) for row in rows]
        traces = _read_trace_contexts(fields.get("traces"))
        if not pending:
            return PollResult(jobs, trace_contexts=traces)
        block = read_uint(fields.get("as_of_block"), 64, "as_of_block")
        return PollResult(jobs, [PendingOffer.read(row) for row in pending], block, traces)

    async def send_op(self, op: RequestBody, deadline: float, *, resend: bool = True) -> OpOutcome:
        """Send an op and wait for its outcome.

        Resending is safe, because the same signed op takes effect only once. After `Unanswered`, the op may still take
        effect.
        """
        outcome = await self._post_op(op, deadline, resend=resend)
        return CoordinatorRefusal(202, None) if isinstance(outcome, OpStored) else outcome

    async def store_op(self, op: RequestBody, deadline: float) -> OpOutcome | OpStored:
        """Send an op without waiting for its block. A coordinator without this feature waits for the op's outcome."""
        return await self._post_op(op, deadline, headers={"prefer": "respond-async"})

    async def _post_op(
        self, op: RequestBody, deadline: float, *, headers: Mapping[str, str] | None = None, resend: bool = True
    ) -> OpOutcome | OpStored:
        answer = await self._send_signed_in(
            "POST", "/evm/ops", deadline, json=op, resend=resend, headers=headers, expected=_OP_STATUSES
        )
        if not isinstance(answer, httpx.Response):
            return answer
        fields = _read_body_members(answer)
        match answer.status_code:
            case 202:
                return OpStored()
            case 201:
                return OpMined(str(fields.get("tx_hash")), fields.get("status") == "success")
            case 409 if fields.get("ok") is False:
                return ChainRefused(str(fields.get("reason")))
            case 504:
                return OpPending(read_error(answer).code or "")
            case _:
                return _refusal_outcome(read_error(answer))

    async def publish_asks(self, body: RequestBody, deadline: float) -> PublishOutcome:
        answer = await self._send_signed_in("PUT", "/evm/asks", deadline, json=body)
        return AsksPublished() if isinstance(answer, httpx.Response) else answer

    async def upload_result(self, sealed: bytes | BinaryIO, deadline: float) -> UploadOutcome:
        """Upload a sealed result. Repeating an upload is harmless, because a file that no settle uses expires."""
        # The route requires `purpose` before the file.
        parts = {"purpose": (None, "result"), "file": ("result", sealed, "application/octet-stream")}
        answer = await self._send_signed_in("POST", "/v1/files", deadline, files=parts)
        if not isinstance(answer, httpx.Response):
            return answer
        try:
            return Uploaded(read_shape(FileFields, parse(answer.content)).svc.cid or None)
        except Refused:
            return Uploaded(None)

    async def release_key(self, body: RequestBody, deadline: float) -> ReleaseOutcome:
        try:
            answer = await self.transport.send("POST", "/release", json=body, deadline=deadline)
        except (ApiError, ConnectionFailed) as failed:
            return _failure_outcome(failed)
        try:
            released = read_shape(ReleasedShape, parse(answer.content))
            return ReleasedKey(read_base64(released.dek_sealed, _MAX_SEALED_KEY_BYTES, "dek_sealed"))
        except Refused:
            return CoordinatorRefusal(answer.status_code, "malformed_release")

    async def _current_session(self) -> SessionShape:
        signed_in = await sign_in(self.sessions)
        if isinstance(signed_in, SignInRefused):
            raise Unavailable(f"no session: {signed_in.detail}", signed_in.status)
        return signed_in.session

    async def _send_signed_in(
        self, method: str, path: str, deadline: float, *, headers: Mapping[str, str] | None = None, **request: Any
    ) -> httpx.Response | CoordinatorRefusal | Unanswered | SignInRefused:
        """Send a request with the session's token. Renew the session once if the coordinator rejects the token."""
        for is_second_attempt in (False, True):
            signed_in = await sign_in(self.sessions, deadline)
            if isinstance(signed_in, SignInRefused):
                return signed_in
            all_headers = {**authorization(signed_in.session), **(headers or {})}
            try:
                return await self.transport.send(method, path, headers=all_headers, deadline=deadline, **request)
            except (ApiError, ConnectionFailed) as failed:
                outcome = _failure_outcome(failed)
            if is_second_attempt or isinstance(outcome, Unanswered) or outcome.status != httpx.codes.UNAUTHORIZED:
                return outcome
            self.sessions.forget(signed_in.session)
        raise AssertionError("the loop returns at its second attempt")


def _failure_outcome(failed: ApiError | ConnectionFailed) -> CoordinatorRefusal | Unanswered:
    """Return the outcome of a failed request. A success response that cannot be read counts as `Unanswered`."""
    if isinstance(failed, ConnectionFailed) or failed.status < httpx.codes.BAD_REQUEST:
        return Unanswered(failed.message)
    return _refusal_outcome(failed)


def _refusal_outcome(error: ApiError) -> CoordinatorRefusal:
    return CoordinatorRefusal(error.status, error.code or error.type)


async def _read_json(transport: Transport, path: str, **request: Any) -> object:
    """Return the parsed body of a GET. Raise `Unavailable` if the GET fails, and `Refused` if the body is not JSON."""
    return parse((await _read_or_unavailable(path, lambda: transport.send("GET", path, **request))).content)


async def _read_or_unavailable(path: str, request: Callable[[], Awaitable[T]]) -> T:
    try:
        return await request()
    except ConnectionFailed as failed:
        raise Unavailable(failed.message) from None
    except ApiError as refused:
        if refused.status < httpx.codes.BAD_REQUEST:  # a success response that cannot be read
            raise Unavailable(refused.message, refused.status) from None
        raise Unavailable(f"{path} answered {refused.status} {refused.code or refused.type}", refused.status) from None


def _read_trace_contexts(rows: object) -> dict[bytes, str]:
    """Return a poll's valid trace contexts by job id. Ignore invalid contexts, because jobs do not need them."""
    found: dict[bytes, str] = {}
    if not spans.is_on() or not isinstance(rows, list):
        return found
    for row in rows[: limits.MAX_PAGE_ROWS]:
        context = spans.read_traceparent(row.get("traceparent")) if isinstance(row, dict) else None
        if context is not None:
            with suppress(Refused):
                found[BYTES32.read(row.get("job_id"), "job_id")] = context
    return found


def _read_object(body: object) -> dict[str, object]:
    if not isinstance(body, dict):
        raise Refused("the coordinator's response must be a JSON object")
    return body


def _read_body_members(answer: httpx.Response) -> dict[str, object]:
    """Return the members of the response body, or an empty dict if the body is not a JSON object."""
    try:
        return _read_object(parse(answer.content))
    except Refused:
        return {}
