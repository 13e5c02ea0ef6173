"""Errors of the client. Every error has `type`, `code`, `param`, `request_id` and `retryable`.

    SvcError
    ├── ApiError                the coordinator returned an error: one class per type, see below
    ├── ConnectionFailed        the coordinator did not answer
    │   └── OutcomeUnknown      an order or a batch was sent, and may or may not have been accepted
    ├── OrderRefused            the client rejected the order before anything was signed; `param` names the field
    ├── FileFailed              a local file cannot be read or written
    ├── NoProvider              no live provider accepts the order
    ├── PlanShort               the network has no capacity for the whole batch in its window
    ├── EscrowUntrusted         the escrow's key could not be verified
    ├── MarketChanged           the contracts or a provider's key differ from the known ones
    ├── ChainContradicts        the chain contradicts the coordinator
    ├── NodeFailed              a node of the chain did not answer, or two nodes disagree
    ├── QuoteRefused            the quote does not match the order, or exceeds the ceiling
    ├── SigningFailed           the wallet did not return a valid signature
    ├── JobFailed, BatchFailed  the job or batch ended without a result
    │   └── PostRefused         the order was stored, but its post was rejected
    ├── ResultTakenBack         the chain did not confirm a provisional result
    ├── TabEnded                the tab accepts no more requests
    │   └── TabFaulty           the provider gave a wrong answer, or charged more than the client acknowledged
    ├── TabRequestFailed        the provider of a tab could not answer one request
    ├── WaitTimedOut            the job or batch did not end in time; it continues
    └── ResultUnreadable        no gateway returned the result, or the result could not be opened

Branch on the class and on `code`, never on the message.
"""

from typing import ClassVar, TypeVar

from common.refusal import Refused

# A payment is collected when a provider claims the job, and refunded if the claimed job ends without a result.
REFUND_REMARKS = {
    "provider_fail": "the provider could not run the job; fully refunded",
    "reclaim": "the provider missed the deadline; fully refunded",
    "cancelled": "no provider had claimed the job; nothing was paid",
    "expired": "no provider claimed the job in time; nothing was paid",
}
_NOT_PAID = "no provider was paid"

E = TypeVar("E", bound="ApiError")
T = TypeVar("T")

NO_WALLET = (
    "no wallet: set SVC_WALLET_KEY_FILE to a key file or an encrypted keystore, SVC_SIGNER_COMMAND to a program that"
    " signs, or SVC_WALLET_KEY to the key itself"
)


class SvcError(Exception):
    """Base class. `type` is the coordinator's error type, or `client_error` for an error of the client itself."""

    type: str = "client_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.request_id = request_id
        self.retryable = retryable


class ApiError(SvcError):
    """Error returned by the coordinator. `status` is the HTTP status, `retryable` comes from `x-svc-retryable`."""

    _by_type: ClassVar[dict[str, "type[ApiError]"]] = {}

    def __init__(
        self,
        message: str,
        *,
        type_: str,
        status: int,
        code: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message, code=code, param=param, request_id=request_id, retryable=retryable)
        self.type = type_
        self.status = status

    def __init_subclass__(cls) -> None:
        cls._by_type[cls.type] = cls

    @classmethod
    def class_of(cls, type_: str) -> "type[ApiError]":
        """Return the class of an error type, or `ApiError` for an unknown type."""
        return cls._by_type.get(type_, ApiError)


class InvalidRequest(ApiError):
    type = "invalid_request_error"


class AuthenticationFailed(ApiError):
    type = "authentication_error"


class InvalidOpSignature(ApiError):
    type = "invalid_op_signature"


class NotFound(ApiError):
    type = "not_found"


class Busy(ApiError):
    type = "busy"


class NotReady(ApiError):
    type = "not_ready"


class ChainUnreachable(ApiError):
    type = "chain_unreachable"


class RelayUnavailable(ApiError):
    type = "relay_unavailable"


class PinnerUnavailable(ApiError):
    type = "pinner_unavailable"


class ReceiptTimeout(ApiError):
    """The transaction was broadcast but not mined within a minute. `code` is the transaction's hash. Poll the job."""

    type = "receipt_timeout"


class InternalError(ApiError):
    type = "internal_error"


class ConnectionFailed(SvcError):
    """The coordinator did not answer (retryable), or a proxy answered instead (not retryable).

    The coordinator may still have received the request.
    """

    def __init__(self, message: str, *, code: str = "connection_failed", retryable: bool = True) -> None:
        super().__init__(message, code=code, retryable=retryable)


class OutcomeUnknown(ConnectionFailed):
    """The request was sent, but it is unknown whether the coordinator accepted the request.

    Look for the job or batch before you order again. Otherwise you may pay for a second job.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, code="outcome_unknown", retryable=False)


class OrderRefused(SvcError):
    """The client rejected the order or another input before signing. Nothing was sent, and nothing is owed."""

    @classmethod
    def because(cls, refusal: Refused, place: str | None = None) -> "OrderRefused":
        """Convert a Refused. `place` says where the wrong field is, for example `line 7`."""
        message = f"{place}: {refusal.message}" if place else refusal.message
        return cls(message, code=refusal.code, param=refusal.param)


class FileFailed(SvcError, OSError):
    """A local file could not be read or written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error), code="file_failed")
        self.errno, self.strerror, self.filename = error.errno, error.strerror, error.filename


class NoProvider(SvcError):
    """No live provider has an ask for the model and window, or the named provider is not live."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="no_live_provider", retryable=True)


class PlanShort(SvcError):
    """The market has capacity for `planned` of the `wanted` lines. Nothing was signed."""

    def __init__(self, model: str, planned: int, wanted: int) -> None:
        message = f"the network has capacity for {planned} of {wanted} lines for {model} in this window now"
        super().__init__(message, code="plan_short", retryable=True)
        self.planned = planned
        self.wanted = wanted


class EscrowUntrusted(SvcError):
    """The client does not accept the escrow's key.

    `code`: `escrow_malformed`, `escrow_binding`, `escrow_debug`, `escrow_mock`, `escrow_not_pinned`, or
    `escrow_changed` if another key was remembered.
    """


class MarketChanged(SvcError):
    """The market that the coordinator reports differs from the known market.

    `code`: `deployment_changed`, `box_key_changed`, or `market_unknown` if only pinned or known markets are accepted.
    """


class ChainContradicts(SvcError):
    """The chain contradicts the coordinator. `code`: `chain_contradicts`; `param` names the fact."""

    def __init__(self, fact: str, reported: object, on_chain: object) -> None:
        message = f"{fact}: the coordinator reports {reported}, the chain {on_chain}"
        super().__init__(message, code="chain_contradicts", param=fact)


class NodeFailed(SvcError):
    """A node did not answer, or several nodes disagreed. The unchecked report was not accepted."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message, code="node_failed", param="SVC_RPC_URL", retryable=retryable)


class QuoteRefused(SvcError):
    """The client does not accept the quote.

    `code`: `quote_mismatch`, `over_max_amount`, or `price_changed` if the price changed at every attempt.
    """


class OverCeiling(QuoteRefused):
    """The order or batch costs `amount`, which exceeds the ceiling.

    `default` is True if no ceiling was set. An interactive command may then ask the user to confirm.
    """

    def __init__(self, message: str, *, amount: int, default: bool) -> None:
        super().__init__(message, code="over_max_amount", param="max_amount")
        self.amount = amount
        self.default = default


class SigningFailed(SvcError):
    """The wallet refused to sign, or its signature does not match its address."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="signing_failed")


class JobFailed(SvcError):
    """The job ended without a result. `code`: `cancelled`, `provider_fail`, `reclaim` or `expired`."""

    def __init__(self, job_id: str, code: str, refunded: str | None = None) -> None:
        """`refunded` is the refunded amount as text, if known."""
        money = REFUND_REMARKS.get(code, _NOT_PAID) + (f" ({refunded})" if refunded is not None else "")
        super().__init__(f"job {job_id} failed ({code}): {money}", code=code)
        self.job_id = job_id


class PostRefused(JobFailed):
    """The order was stored, but its post was rejected. `code` is the contract's error or the coordinator's reason."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(job_id, reason)
        self.message = f"job {job_id} was not posted: {reason}; nothing was collected"
        self.args = (self.message,)


class ResultTakenBack(SvcError):
    """The chain did not settle a provisional result.

    `code` says how the job ended (as in JobFailed). If the chain settled another result, `code` is `other_result`, and
    `open` returns that result.
    """

    def __init__(self, job_id: str, code: str, reason: str) -> None:
        super().__init__(f"the provisional result was not confirmed: {reason}", code=code)
        self.job_id = job_id


class BatchFailed(SvcError):
    """The input file of a batch was rejected. `code` is the code of the first error."""

    def __init__(self, batch_id: str, message: str, code: str | None) -> None:
        super().__init__(f"batch {batch_id} was rejected: {message}", code=code)
        self.batch_id = batch_id


class TabEnded(SvcError):
    """The tab accepts no more requests. The rejected request is not charged. Open another tab.

    `code`: `tab_full` (the cap is used up), `tab_closing`, `tab_ended`, `tab_refused` (ended at once, before any
    answer), `tab_stuck` (answers of an interrupted process cannot be checked: close the tab), or `request_too_large`.
    """

    def __init__(self, job_id: str, code: str, reason: str) -> None:
        super().__init__(f"tab {job_id}: {reason}", code=code, retryable=code != "request_too_large")
        self.job_id = job_id


class TabFaulty(TabEnded):
    """The provider broke the protocol of tabs. The client opens no more tabs with this provider.

    `code`: `wrong_answer` (the client did not acknowledge the answer) or `overcharged` (a receipt proves the
    overcharge).
    """


class TabRequestFailed(SvcError):
    """The provider could not answer this request, which is not charged. `code` is the provider's error code."""

    def __init__(self, job_id: str, code: str) -> None:
        super().__init__(f"tab {job_id}: the provider could not answer ({code}); the request is not charged", code=code)
        self.job_id = job_id


class WaitTimedOut(SvcError):
    """The job or batch did not end in time, and continues. Wait again with the same id."""

    def __init__(self, subject: str, seconds: float) -> None:
        """`subject` is, for example, `job 0x…`."""
        super().__init__(f"{subject} did not end within {seconds:g} s", code="wait_timed_out", retryable=True)


class ResultUnreadable(SvcError):
    """The result cannot be read.

    `code`: `no_result`, `reads_disabled`, `gateway_unavailable`, `gateway_status`, or the reason why the result could
    not be opened (`unseal_failed` if the result was sealed to another key).
    """
