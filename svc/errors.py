"""Errors of the client, one family: every error says `type`, `code`, `param`, `request_id` and `retryable`.

    SvcError
    ├── ApiError                the coordinator answered with an error: one class per type, see below
    ├── ConnectionFailed        no answer
    │   └── OutcomeUnknown      an order or a batch was sent, and whether it was taken could not be found out
    ├── OrderRefused            refused here, before anything was signed or sent; `param` names the field
    ├── FileFailed              a local file cannot be read or written
    ├── NoProvider              nobody live takes the order
    ├── PlanShort               the network cannot take the batch in its window now
    ├── EscrowUntrusted         the escrow's key could not be verified
    ├── MarketChanged           the market is not the known one: other contracts, another key of a provider
    ├── ChainContradicts        the chain says otherwise than the coordinator
    ├── NodeFailed              a node of the chain did not answer, or two of them disagree
    ├── QuoteRefused            the quote is not what the order comes to, or more than allowed
    ├── SigningFailed           the wallet gave no signature of its own
    ├── JobFailed, BatchFailed  it ended without a result
    │   └── PostRefused         the order was stored, and then could not be posted
    ├── ResultTakenBack         a provisional result that the chain did not confirm
    ├── WaitTimedOut            it did not end in time; it goes on without us
    └── ResultUnreadable        no gateway gave the result, or it did not open

Branch on the class and on `code`, never on the message.
"""

from typing import ClassVar, TypeVar

from common.refusal import Refused

E = TypeVar("E", bound="ApiError")
T = TypeVar("T")

NO_WALLET = (
    "no wallet: set SVC_WALLET_KEY_FILE to a key file, SVC_KEYSTORE to an encrypted one, SVC_SIGNER_COMMAND to a"
    " program that signs, or SVC_WALLET_KEY to the key itself"
)


class SvcError(Exception):
    """`type` is the coordinator's error type, or `client_error` for what happened on this side."""

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
    """The coordinator's own error. `status` is of HTTP; `retryable` is what its header says."""

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
        """The class of an error type; `ApiError` itself for a type that is not known here."""
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
    """Broadcast, but not mined within a minute; `code` is the transaction's hash. Poll, do not send again."""

    type = "receipt_timeout"


class InternalError(ApiError):
    type = "internal_error"


class ConnectionFailed(SvcError):
    """The coordinator did not answer, or a proxy answered in its place, which is not retryable. What was sent may have
    arrived."""

    def __init__(self, message: str, *, code: str = "connection_failed", retryable: bool = True) -> None:
        super().__init__(message, code=code, retryable=retryable)


class OutcomeUnknown(ConnectionFailed):
    """It was sent, no answer came, and it could not be looked up either: it may be under way. Look for it before
    anything is ordered anew: a new order is another job, and paid as well."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="outcome_unknown", retryable=False)


class OrderRefused(SvcError):
    """Refused before it was signed: nothing was sent and nothing is owed."""

    @classmethod
    def because(cls, refusal: Refused, place: str | None = None) -> "OrderRefused":
        """`place`: where the refused field stands, `line 7` of a file for one."""
        message = f"{place}: {refusal.message}" if place else refusal.message
        return cls(message, code=refusal.code, param=refusal.param)


class FileFailed(SvcError, OSError):
    """A local file cannot be read or written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error), code="file_failed")
        self.errno, self.strerror, self.filename = error.errno, error.strerror, error.filename


class NoProvider(SvcError):
    """Nobody who is live has an ask for the model and window, or the provider that was named is not live."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="no_live_provider", retryable=True)


class PlanShort(SvcError):
    """The market would take `planned` of the `wanted` lines; nothing was signed."""

    def __init__(self, model: str, planned: int, wanted: int) -> None:
        message = f"the network takes {planned} of {wanted} lines for {model} in this window now"
        super().__init__(message, code="plan_short", retryable=True)
        self.planned = planned
        self.wanted = wanted


class EscrowUntrusted(SvcError):
    """`code`: `escrow_malformed`, `escrow_binding`, `escrow_debug`, `escrow_mock`, `escrow_not_pinned`, or
    `escrow_changed` for a key that is not among the known ones of this market."""


class MarketChanged(SvcError):
    """Refused, since the coordinator tells another market than is known at its address. `code`: `deployment_changed`,
    `box_key_changed`, or `market_unknown` where only a pinned or known market is taken."""


class ChainContradicts(SvcError):
    """The coordinator said one thing and the chain another. `code`: `chain_contradicts`; `param` names the fact."""

    def __init__(self, fact: str, told: object, on_chain: object) -> None:
        message = f"{fact}: the coordinator says {told}, the chain {on_chain}"
        super().__init__(message, code="chain_contradicts", param=fact)


class NodeFailed(SvcError):
    """A node did not answer what was asked, or several answered differently: nothing was taken unchecked."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message, code="node_failed", param="SVC_RPC_URL", retryable=retryable)


class QuoteRefused(SvcError):
    """`code`: `quote_mismatch`, `over_max_amount`, or `price_changed` when it changed under every attempt."""


class OverCeiling(QuoteRefused):
    """The order or batch comes to `amount`, above the ceiling; `default`: nobody had set one, so that whoever
    watches may be asked."""

    def __init__(self, message: str, *, amount: int, default: bool) -> None:
        super().__init__(message, code="over_max_amount", param="max_amount")
        self.amount = amount
        self.default = default


class SigningFailed(SvcError):
    """The wallet refused, or what it gave is not its signature over what was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="signing_failed")


class JobFailed(SvcError):
    """A job that ended without a result. `code`: `cancelled`, `provider_fail`, `reclaim` or `expired`."""

    def __init__(self, job_id: str, code: str, returned: str | None = None) -> None:
        """`returned`: the payment that came back, in words, where it is known."""
        money = NO_RESULT_MONEY.get(code, _NOT_PAID) + (f": {returned}" if returned is not None else "")
        super().__init__(f"job {job_id} ended without a result: {code}; {money}", code=code)
        self.job_id = job_id


class PostRefused(JobFailed):
    """An order that was stored, and then not posted. `code` is the contract's error, or the coordinator's reason."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(job_id, reason)
        self.message = f"job {job_id} was not posted: {reason}; nothing was collected"
        self.args = (self.message,)


class ResultTakenBack(SvcError):
    """A result that was given before its block, and that the chain did not settle. `code`: how the job ended, as of
    JobFailed, or `other_result` where another one was settled: `open` reads that."""

    def __init__(self, job_id: str, code: str, how: str) -> None:
        super().__init__(f"a provisional result was taken back: {how}", code=code)
        self.job_id = job_id


# Where the money of a job without a result is: collected at the claim alone, and returned whole by every such end.
_RETURNED = "the whole payment, charges included, came back to the wallet"
_NOT_PAID = "no provider was paid"
NO_RESULT_MONEY = {
    "provider_fail": f"its provider gave up, and {_RETURNED}",
    "reclaim": f"its provider missed the window, and {_RETURNED}",
    "cancelled": "it was taken back before anybody claimed it: nothing was collected",
    "expired": "nobody claimed it in time: nothing was collected",
}


class BatchFailed(SvcError):
    """The input file of a batch was refused as a whole. `code` is of the first reason given."""

    def __init__(self, batch_id: str, message: str, code: str | None) -> None:
        super().__init__(f"batch {batch_id} was refused: {message}", code=code)
        self.batch_id = batch_id


class WaitTimedOut(SvcError):
    """What was waited for did not end in time. It goes on; wait again with the same id."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} did not end within {seconds:g} s", code="wait_timed_out", retryable=True)


class ResultUnreadable(SvcError):
    """`code`: `no_result`, `reads_disabled`, `gateway_unavailable`, `gateway_status`, or why it did not open
    (`unseal_failed` when it was sealed to another key)."""
