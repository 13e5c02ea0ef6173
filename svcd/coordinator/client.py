"""The coordinator's routes, as a provider uses them.

Reads return values, and raise `Unavailable` when they fail. Ops return an outcome for every way they can end.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, BinaryIO, Final, TypeVar

import attrs
import httpx

from common.address_book import AddressBook
from common.api import limits
from common.api.chain import DeploymentFields, SessionShape, reported_book
from common.api.escrow import ReleasedShape
from common.api.files import FileFields
from common.api.market import AskShape, Floor, ModelDetails, ModelFields, ProviderFields
from common.api.shapes import read_shape
from common.quotes import FeeTerms
from common.refusal import Refused
from common.scalars import hex_of, read_base64, read_uint
from common.strict_json import parse
from svc.wire.answers import MAX_CONTENT_BYTES
from svc.wire.pages import MAX_LIST_BYTES, paged
from svc.wire.sessions import Sessions, authorization
from svc.wire.transport import ApiError, ConnectionFailed, RetryPolicy, Transport, error_of
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.coordinator.op_signer import Body
from svcd.coordinator.outcomes import (
    ChainRefused,
    CoordinatorRefusal,
    OpMined,
    OpOutcome,
    OpPending,
    OpStored,
    Published,
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
_WINDOWS: Final = "windows"
# For a whole answer, where the caller names no deadline.
_ANSWER_TIMEOUT_S: Final = 180.0
_OP_STATUSES: Final = frozenset({201, 202, 409, 504})
_QUOTED: Final = frozenset({200, 402})

T = TypeVar("T")

# This provider's registry entry and its asks. Unknown members are ignored.
ProviderRecord = ProviderFields[int]
PostedAsk = AskShape[int]
_Deployment = DeploymentFields[int]
_Model = ModelFields[int]
_Floor = Floor[int]
Floors = dict[tuple[int, int], tuple[int, int]]  # rate_in and rate_out by model id and window


def transport_of(http: httpx.AsyncClient, clock: Clock | None = None) -> Transport:
    """Return the way to the coordinator at the client's `base_url`. Its answers correct the clock."""
    return Transport(http, clock or Clock(), RetryPolicy(after_proxy=True), attempt_seconds=_ANSWER_TIMEOUT_S)


async def read_deployment(transport: Transport) -> AddressBook:
    """Return the chain and contracts that signatures are bound to: no session is possible before they are known.

    Raises Unavailable, and common's Refused when malformed."""
    return reported_book(read_shape(_Deployment, await _read(transport, "/evm/chain")))


@attrs.frozen(slots=True)
class MarketReads:
    """Public reads of a coordinator, which need no session."""

    transport: Transport

    async def models(self) -> dict[str, int]:
        """Return the ids of the enabled models, by name."""
        return {name: model.model_id for name, model in (await self.catalogue()).items()}

    async def catalogue(self) -> dict[str, ModelDetails[int]]:
        """Return the enabled models, by name."""
        rows = [read_shape(_Model, row) for row in await self._pages("/v1/models", "data")]
        return {row.id: row.svc for row in rows if row.svc.enabled}

    async def terms(self) -> FeeTerms:
        """Return the market's current fees."""
        chain = await self._chain()
        return FeeTerms(read_uint(chain.get("fee_bps"), 16, "fee_bps"), read_uint(chain.get("gas_fee"), 128, "gas_fee"))

    async def gateway(self) -> str | None:
        """Return the address of a storage gateway, where the coordinator names one."""
        gateway = (await self._chain()).get("gateway_url")
        return gateway if isinstance(gateway, str) and gateway else None

    async def floors(self) -> Floors:
        """Return the lowest rates on the book."""
        rows = [read_shape(_Floor, row) for row in await self._pages("/evm/asks/floors", "floors")]
        return {(row.model_id, row.sla): (row.rate_in, row.rate_out) for row in rows}

    async def ended_by(self, provider_id: int) -> list[dict[str, object]]:
        """Return the rows of all jobs that this provider settled, failed or left, as the book has them."""
        rows: list[dict[str, object]] = []
        for state in ("Settled", "Cancelled"):
            query = {"state": state, "provider": str(provider_id)}
            rows += await self._pages("/evm/jobs", "jobs", query, MAX_CONTENT_BYTES)
        return rows

    async def windows(self) -> frozenset[int] | None:
        """Return the windows that the market accepts, in seconds; None where the coordinator does not list them."""
        windows = (await self._chain()).get(_WINDOWS)
        if not isinstance(windows, list):
            return None
        return frozenset(read_uint(window, 32, _WINDOWS) for window in windows)

    async def is_polled_for(self, provider_id: int) -> bool:
        """Return whether a daemon polled as this provider a moment ago: the provider is then a candidate for an order
        at its asks."""
        for ask in {ask.model_id: ask for ask in await self.asks_of(provider_id)}.values():
            demand = {"model_id": ask.model_id, "sla_secs": ask.sla, "units_in": 1, "units_out": 1}
            try:
                quote = await self.transport.send(
                    "POST", "/v1/jobs", json={**demand, "designated": provider_id}, expected=_QUOTED
                )
            except (ApiError, ConnectionFailed):
                continue
            listed = _fields(quote).get("candidates")
            rows = listed if isinstance(listed, list) else []
            if any(isinstance(row, dict) and str(row.get("provider_id")) == str(provider_id) for row in rows):
                return True
        return False

    async def provider(self, provider_id: int) -> ProviderRecord:
        return read_shape(ProviderRecord, await _read(self.transport, f"/evm/providers/{provider_id}"))

    async def job(self, job_id: bytes) -> Job | None:
        """Return a job; None when the coordinator does not know it."""
        try:
            return Job.read(_object(await _read(self.transport, f"/evm/jobs/{hex_of(job_id)}")))
        except Unavailable as failed:
            if failed.status == httpx.codes.NOT_FOUND:
                return None
            raise

    async def claimed_by(self, provider_id: int) -> list[Job]:
        rows = await self._pages("/evm/jobs", "jobs", {"state": "Claimed", "provider": str(provider_id)})
        return [Job.read(row) for row in rows]

    async def asks_of(self, provider_id: int) -> list[PostedAsk]:
        return [ask for ask in await self.asks() if ask.provider_id == provider_id]

    async def asks(self) -> list[PostedAsk]:
        return [read_shape(PostedAsk, row) for row in await self._pages("/evm/asks", "asks")]

    async def _chain(self) -> dict[str, object]:
        return _object(await _read(self.transport, "/evm/chain"))

    async def _pages(
        self, path: str, key: str, query: Mapping[str, str] | None = None, max_bytes: int = MAX_LIST_BYTES
    ) -> list[dict[str, object]]:
        return await _available(
            path, lambda: paged(self.transport, path, key, dict, limit=None, params=query, max_bytes=max_bytes)
        )


@attrs.frozen(slots=True)
class PollResult:
    """Jobs that a poll returned. `pending` ones have no mined post yet. `block` is that of the index."""

    jobs: list[Job]
    pending: list[PendingOffer] = attrs.field(factory=list)
    block: int = 0


@attrs.frozen(slots=True)
class Coordinator(MarketReads):
    """Reads, and the polls and ops of a provider that is signed in."""

    sessions: Sessions

    async def poll(self, model_id: int, free: int, rates: Mapping[str, int], wait: int = 0) -> PollResult:
        """Report `free` slots, and return at most that many leased jobs.

        `rates` has the lowest accepted `rate_in` and `rate_out`. The coordinator may hold an empty answer for `wait`
        seconds.
        """
        query = {
            "state": "Open",
            "model": str(model_id),
            "free": str(free),
            "pending": "1",
            "limit": str(min(limits.MAX_PAGE_ROWS, max(1, free))),
        }
        query |= {f"min_{name}": str(rate) for name, rate in rates.items()}
        if wait:
            query["wait"] = str(wait)
        session = await self._session()
        headers = authorization(session)
        try:
            # Sent once: the next poll follows in any case.
            fields = _object(await _read(self.transport, "/evm/jobs", params=query, headers=headers, safe=False))
        except Unavailable as failed:
            if failed.status == httpx.codes.UNAUTHORIZED:
                self.sessions.drop(session)
            raise
        rows, pending = fields.get("jobs"), fields.get("pending", [])
        if not isinstance(rows, list) or not isinstance(pending, list):
            raise Unavailable("the poll was answered without jobs", 200)
        jobs = [Job.read(row) for row in rows]
        if not pending:
            return PollResult(jobs)
        block = read_uint(fields.get("as_of_block"), 64, "as_of_block")
        return PollResult(jobs, [PendingOffer.read(row) for row in pending], block)

    async def run(self, op: Body, deadline: float, *, resend: bool = True) -> OpOutcome:
        """Send an op and wait for its outcome.

        Resending is safe, because the same signed op is one transaction. After `Unanswered` the op may still take
        effect.
        """
        outcome = await self._op(op, deadline, resend=resend)
        return CoordinatorRefusal(202, None) if isinstance(outcome, OpStored) else outcome

    async def store(self, op: Body, deadline: float) -> OpOutcome | OpStored:
        """Send an op without waiting for its block. A coordinator that cannot do so waits and returns the outcome."""
        return await self._op(op, deadline, headers={"prefer": "respond-async"})

    async def _op(
        self, op: Body, deadline: float, *, headers: Mapping[str, str] | None = None, resend: bool = True
    ) -> OpOutcome | OpStored:
        answer = await self._signed_in(
            "POST", "/evm/ops", deadline, json=op, resend=resend, headers=headers, expected=_OP_STATUSES
        )
        if not isinstance(answer, httpx.Response):
            return answer
        fields = _fields(answer)
        match answer.status_code:
            case 202:
                return OpStored()
            case 201:
                return OpMined(str(fields.get("tx_hash")), fields.get("status") == "success")
            case 409 if fields.get("ok") is False:
                return ChainRefused(str(fields.get("reason")))
            case 504:
                return OpPending(error_of(answer).code or "")
            case _:
                return _refusal(error_of(answer))

    async def publish(self, body: Body, deadline: float) -> PublishOutcome:
        answer = await self._signed_in("PUT", "/evm/asks", deadline, json=body)
        return Published() if isinstance(answer, httpx.Response) else answer

    async def upload(self, sealed: bytes | BinaryIO, deadline: float) -> UploadOutcome:
        """Upload a sealed result; `purpose` goes first, as the route requires. Uploading twice does no harm: a file
        that no settle names expires."""
        parts = {"purpose": (None, "result"), "file": ("result", sealed, "application/octet-stream")}
        answer = await self._signed_in("POST", "/v1/files", deadline, files=parts)
        if not isinstance(answer, httpx.Response):
            return answer
        try:
            return Uploaded(read_shape(FileFields, parse(answer.content)).svc.cid or None)
        except Refused:
            return Uploaded(None)

    async def release(self, body: Body, deadline: float) -> ReleaseOutcome:
        try:
            answer = await self.transport.send("POST", "/release", json=body, deadline=deadline)
        except (ApiError, ConnectionFailed) as failed:
            return _failure(failed)
        try:
            released = read_shape(ReleasedShape, parse(answer.content))
            return ReleasedKey(read_base64(released.dek_sealed, _MAX_SEALED_KEY_BYTES, "dek_sealed"))
        except Refused:
            return CoordinatorRefusal(answer.status_code, "malformed_release")

    async def _session(self) -> SessionShape:
        signed_in = await sign_in(self.sessions)
        if isinstance(signed_in, SignInRefused):
            raise Unavailable(f"no session: {signed_in.detail}", signed_in.status)
        return signed_in.session

    async def _signed_in(
        self, method: str, path: str, deadline: float, *, headers: Mapping[str, str] | None = None, **request: Any
    ) -> httpx.Response | CoordinatorRefusal | Unanswered | SignInRefused:
        """Send a request under the session, which is renewed once where the coordinator does not know it."""
        for renewed in (False, True):
            signed_in = await sign_in(self.sessions, deadline)
            if isinstance(signed_in, SignInRefused):
                return signed_in
            sent = {**authorization(signed_in.session), **(headers or {})}
            try:
                return await self.transport.send(method, path, headers=sent, deadline=deadline, **request)
            except (ApiError, ConnectionFailed) as failed:
                outcome = _failure(failed)
            if renewed or isinstance(outcome, Unanswered) or outcome.status != httpx.codes.UNAUTHORIZED:
                return outcome
            self.sessions.drop(signed_in.session)
        raise AssertionError("the second outcome is returned")


def _failure(failed: ApiError | ConnectionFailed) -> CoordinatorRefusal | Unanswered:
    """Return the outcome of a failed request. An unreadable success answer counts as no answer."""
    if isinstance(failed, ConnectionFailed) or failed.status < httpx.codes.BAD_REQUEST:
        return Unanswered(failed.message)
    return _refusal(failed)


def _refusal(error: ApiError) -> CoordinatorRefusal:
    return CoordinatorRefusal(error.status, error.code or error.type)


async def _read(transport: Transport, path: str, **request: Any) -> object:
    """Return the JSON that a GET is answered with. Raises Unavailable, and common's Refused for other bodies."""
    return parse((await _available(path, lambda: transport.send("GET", path, **request))).content)


async def _available(path: str, ask: Callable[[], Awaitable[T]]) -> T:
    try:
        return await ask()
    except ConnectionFailed as failed:
        raise Unavailable(failed.message) from None
    except ApiError as refused:
        if refused.status < httpx.codes.BAD_REQUEST:  # it cannot be read: the message says why
            raise Unavailable(refused.message, refused.status) from None
        raise Unavailable(f"{path}: answered {refused.status} {refused.code or refused.type}", refused.status) from None


def _object(body: object) -> dict[str, object]:
    if not isinstance(body, dict):
        raise Refused("the answer must be a JSON object")
    return body


def _fields(answer: httpx.Response) -> dict[str, object]:
    """Return the members of an answer's body; none where the body is not a JSON object."""
    try:
        return _object(parse(answer.content))
    except Refused:
        return {}
