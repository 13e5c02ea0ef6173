"""The status and body of every outcome, in one place.

Handlers return what these functions make; nothing else in `api` builds an error or picks a status.
"""

from collections.abc import Mapping
from typing import Final, assert_never

import attrs
import msgspec

from common.address_book import AddressBook
from common.refusal import Refused
from common.scalars import base64_of, hex_of
from coordinatord.api import batch_views, escrow_views, plan_views, views, write_views
from coordinatord.api.views import ErrorType
from coordinatord.indexer.readiness import ReadinessReport
from coordinatord.service import asks, batches, cancel, ops, sessions, submission
from coordinatord.service.escrow import handing, release
from coordinatord.service.outcomes import NotFound, NotSigned, WouldRefuse
from coordinatord.service.plan import ModelPlan
from coordinatord.service.relaying import Busy, Mined, NoReceipt, RefusedByChain
from coordinatord.store.snapshot import Snapshot
from coordinatord.trouble import Retryable

Headers = tuple[tuple[bytes, bytes], ...]

_encode: Final = msgspec.json.Encoder().encode
_JSON: Final = (b"content-type", b"application/json")
_FINAL: Final = (b"x-svc-retryable", b"false")
_RETRYABLE: Final = (b"x-svc-retryable", b"true")


@attrs.frozen(slots=True)
class Answer:
    """`snapshot`: where the index stood, for an answer that is the same as long as it stands there."""

    status: int
    body: bytes
    headers: Headers = (_JSON,)
    snapshot: Snapshot | None = None


def ok(body: msgspec.Struct, *, status: int = 200, snapshot: Snapshot | None = None) -> Answer:
    return Answer(status, _encode(body), snapshot=snapshot)


def ok_private(body: msgspec.Struct) -> Answer:
    """An answer that no cache may keep: it holds a secret of its caller."""
    return Answer(200, _encode(body), (_JSON, (b"cache-control", b"no-store")))


def error(
    status: int,
    kind: ErrorType,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retryable: bool = False,
    headers: Headers = (),
) -> Answer:
    envelope = views.Error(views.ErrorBody(message=message, type=kind, param=param, code=code))
    return Answer(status, _encode(envelope), (_JSON, _RETRYABLE if retryable else _FINAL, *headers))


def refused(refusal: Refused) -> Answer:
    return error(400, "invalid_request_error", refusal.message, param=refusal.param, code=refusal.code)


def trouble(cause: Retryable) -> Answer:
    status = 429 if cause.kind == "busy" else 503
    headers: Headers = ()
    if cause.retry_after is not None or cause.kind == "busy":
        headers = ((b"retry-after", str(cause.retry_after or 1).encode()),)
    return error(status, cause.kind, cause.message, code=cause.code, retryable=True, headers=headers)


def malformed_http(status: int) -> Answer:
    """What is no request at all: the server answers, before any route is known."""
    return error(status, "invalid_request_error", "this is no message of HTTP that can be read in one way only")


def internal_error() -> Answer:
    return error(500, "internal_error", "this request met an unexpected failure")


def not_found(missing: NotFound) -> Answer:
    return error(404, "not_found", f"there is no such {missing.what}")


def model_not_found(name: str) -> Answer:
    """Specified apart from every other error: no `param`, and no retryable header."""
    body = views.ModelNotFoundBody(f"there is no model {name!r}", "not_found", "model_not_found")
    return Answer(404, _encode(views.ModelNotFound(body)))


def method_not_allowed(allowed: str) -> Answer:
    message = f"this route answers {allowed}"
    return error(405, "invalid_request_error", message, headers=((b"allow", allowed.encode()),))


def body_too_large(limit: int) -> Answer:
    message = f"the body is over this route's limit of {limit} bytes"
    return error(413, "invalid_request_error", message, code="body_too_large")


def file_too_large(limit: int) -> Answer:
    message = f"the file is over the limit of {limit} bytes"
    return error(413, "invalid_request_error", message, param="file", code="file_too_large")


def range_not_satisfiable(size: int) -> Answer:
    headers = ((b"content-range", f"bytes */{size}".encode()),)
    return error(416, "invalid_request_error", "the range lies outside of the file", headers=headers)


def body_too_slow() -> Answer:
    message = "the body did not arrive in time"
    return error(408, "invalid_request_error", message, headers=((b"connection", b"close"),))


def invalid_session() -> Answer:
    message = "the session token is missing, malformed or expired"
    return error(401, "authentication_error", message, code="invalid_session")


def escrow_unavailable() -> Answer:
    return error(403, "invalid_request_error", "this coordinator hosts no escrow", code="escrow_unavailable")


def handover_disabled() -> Answer:
    message = "the keys of this escrow are its operator's and are not handed over"
    return error(403, "invalid_request_error", message, code="escrow_handover_disabled")


def not_signed(outcome: NotSigned, *, status: int = 403) -> Answer:
    return error(status, outcome.kind, outcome.message, param=None, code=outcome.code)


def busy() -> Answer:
    return trouble(Retryable("busy", "too many requests are queued on this subject", retry_after=2))


def receipt_timeout(tx_hash: bytes, poll: str) -> Answer:
    message = f"no receipt within 60 seconds; the transaction may still be mined: poll {poll} instead of resending"
    return error(504, "receipt_timeout", message, code=hex_of(tx_hash))


def refused_by_chain(outcome: RefusedByChain) -> Answer:
    if outcome.name is None:
        return error(409, "invalid_request_error", f"the chain refuses: {hex_of(outcome.raw)}")
    return error(409, "invalid_request_error", f"the chain refuses: {outcome.name}", code=outcome.name)


def would_refuse(outcome: WouldRefuse) -> Answer:
    return error(409, "invalid_request_error", outcome.message, code=outcome.name)


def readiness(report: ReadinessReport, *, stopping: bool) -> Answer:
    """A node that is stopping is not ready, whatever its index says."""
    body = views.Readiness(
        ready=report.ready and not stopping,
        reason=report.reason,
        cursor=_digits(report.cursor),
        head_block=_digits(report.head_block),
        lag=_digits(report.lag),
    )
    # Not an error of the request: a reader asks again when it likes.
    return Answer(200, _encode(body)) if body.ready else Answer(503, _encode(body), (_JSON, _RETRYABLE))


def _digits(number: int | None) -> str | None:
    return str(number) if number is not None else None


# --- outcomes of whole services --------------------------------------------------------------------------------


def submitted(outcome: submission.Outcome, book: AddressBook, poll: str) -> Answer:
    match outcome:
        case submission.Posted():
            body = write_views.Posted(hex_of(outcome.job_id), outcome.task_cid, hex_of(outcome.tx_hash))
            return ok(body, status=201)
        case submission.Probed():
            listed = write_views.Candidates([views.candidate(row) for row in outcome.candidates])
            return Answer(402, _encode(listed), (_JSON, _FINAL))
        case submission.Quoted():
            # A quote asks for payment; one that answers an outdated amount is a conflict.
            quote = write_views.quote_body(book, outcome)
            return Answer(409 if outcome.changed else 402, _encode(quote), (_JSON, _FINAL))
        case RefusedByChain() | WouldRefuse() | Busy() | NoReceipt():
            return relayed(outcome, poll)
        case _:
            assert_never(outcome)


def relayed(outcome: RefusedByChain | Busy | NoReceipt | WouldRefuse, poll: str) -> Answer:
    match outcome:
        case RefusedByChain():
            return refused_by_chain(outcome)
        case WouldRefuse():
            return would_refuse(outcome)
        case Busy():
            return busy()
        case NoReceipt():
            return receipt_timeout(outcome.tx_hash, poll)
        case _:
            assert_never(outcome)


def planned(plans: list[ModelPlan]) -> Answer:
    """What a batch would meet: not an error, and nothing that a repetition would change."""
    return Answer(402, _encode(plan_views.plan(plans)), (_JSON, _FINAL))


def cancelled(job_id: bytes, outcome: cancel.Outcome) -> Answer:
    if isinstance(outcome, Mined | cancel.HasEnded):
        return ok(write_views.Cancelled(hex_of(job_id), hex_of(outcome.tx_hash)))
    return relayed(outcome, f"GET /v1/jobs/{hex_of(job_id)}")


def op_ended(outcome: ops.Outcome) -> Answer:
    match outcome:
        case ops.OpDone():
            body = write_views.OpDone(hex_of(outcome.mined.tx_hash), "success", str(outcome.mined.block_number))
            if outcome.result_cid is not None:
                body.result_cid = outcome.result_cid
            return ok(body, status=201)
        case RefusedByChain():
            return _op_refused(outcome.name, outcome.raw)
        case WouldRefuse():
            return _op_refused(outcome.name, b"")
        case NotSigned():
            return not_signed(outcome)
        case Busy():
            return busy()
        case ops.StillPending():
            return receipt_timeout(outcome.tx_hash, outcome.poll)
        case _:
            assert_never(outcome)


def _op_refused(name: str | None, raw: bytes) -> Answer:
    body = write_views.OpRefused(ok=False, reason=name or "unknown")
    if name is None:
        body.raw = hex_of(raw)
    return Answer(409, _encode(body), (_JSON, _FINAL))


def asks_published(outcome: asks.Outcome) -> Answer:
    match outcome:
        case asks.Published():
            body = write_views.Published(
                str(outcome.provider_id), str(outcome.signed_at), True, hex_of(outcome.tx_hash)
            )
            return ok(body)
        case asks.StaleSnapshot(superseded=True):
            return error(409, "invalid_request_error", "a newer snapshot is on the chain already", code="superseded")
        case asks.StaleSnapshot():
            message = "signed_at is not newer than the provider's latest snapshot"
            return error(409, "invalid_request_error", message, param="snapshot.signed_at", code="stale_snapshot")
        case NotSigned():
            return not_signed(outcome)
        case RefusedByChain() | Busy() | NoReceipt():
            return relayed(outcome, "GET /evm/asks")
        case _:
            assert_never(outcome)


def batch_cancelled(outcome: batches.CancelOutcome) -> Answer:
    match outcome:
        case batches.Found():
            return ok(batch_views.batch_as_of(outcome.batch, outcome.snapshot.block_number))
        case batches.NotCancellable():
            message = "the batch has ended, or every line of it has"
            return error(400, "invalid_request_error", message, code="batch_not_cancellable")
        case None:
            return not_found(NotFound("batch"))
        case _:
            assert_never(outcome)


def session_opened(outcome: sessions.Outcome) -> Answer:
    match outcome:
        case sessions.OpenedSession():
            body = views.Session(outcome.token, outcome.expires_at)
            if outcome.provider_id is not None:
                body.provider_id = outcome.provider_id
            return ok_private(body)
        case NotSigned(code="not_registered"):
            return not_signed(outcome)
        case NotSigned():
            return not_signed(outcome, status=401)
        case _:
            assert_never(outcome)


_NOT_RELEASED: Final[Mapping[release.Reason, tuple[int, ErrorType]]] = {
    "stale_issued_at": (400, "invalid_request_error"),
    "wrong_wallet": (403, "authentication_error"),
    "no_claim": (404, "not_found"),
    "not_claimed": (409, "invalid_request_error"),
    "wrap_mismatch": (400, "invalid_request_error"),
    "unseal_failed": (400, "invalid_request_error"),
    "escrow_key_lost": (410, "not_found"),
}


def released(outcome: release.Outcome) -> Answer:
    match outcome:
        case release.Released():
            return ok_private(escrow_views.Released(base64_of(outcome.dek_sealed)))
        case release.NotReleased():
            status, kind = _NOT_RELEASED[outcome.reason]
            return error(status, kind, outcome.message, code=outcome.reason)
        case _:
            assert_never(outcome)


_NOT_HANDED_OVER: Final[Mapping[handing.Reason, tuple[int, ErrorType]]] = {
    "stale_issued_at": (400, "invalid_request_error"),
    "bad_binding": (400, "invalid_request_error"),
    "debug_evidence": (403, "invalid_request_error"),
    "stale_release": (403, "invalid_request_error"),
    "bad_operator_signature": (403, "authentication_error"),
    "operator_not_authorized": (403, "authentication_error"),
    "not_allowlisted": (403, "invalid_request_error"),
    "tombstoned": (403, "invalid_request_error"),
}


def handed_over(outcome: handing.Outcome) -> Answer:
    match outcome:
        case handing.HandedOver():
            body = escrow_views.HandedOver(base64_of(outcome.keys_sealed), outcome.key_count, outcome.holder_release)
            return ok_private(body)
        case handing.NotHandedOver():
            status, kind = _NOT_HANDED_OVER[outcome.reason]
            return error(status, kind, outcome.message, code=outcome.reason)
        case _:
            assert_never(outcome)
