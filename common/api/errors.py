"""Errors of the API: each code with its type, its cause and its remedy, and the errors of the contracts.

Routes declare the codes that they return. `/openapi.json` takes cause and remedy from this module. A test checks that
this table, the routes and the coordinator's code name the same codes.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from common.api.error_bodies import ErrorType


@attrs.frozen(slots=True)
class KnownError:
    """Error with its cause and remedy. `code` is None if the specification gives the error only a type."""

    code: str | None
    types: tuple[ErrorType, ...]
    cause: str
    remedy: str


RECEIPT_TIMEOUT: Final = "receipt_timeout"
"""Type of the error whose code is a transaction hash."""

_RETRY_REMEDY: Final = "send the same request again later"
_SIGN_REMEDY: Final = (
    "sign exactly the values that you send, in the domain of GET /evm/chain, with the wallet that the request names"
)


def _invalid_request(code: str, cause: str, remedy: str) -> KnownError:
    return KnownError(code, ("invalid_request_error",), cause, remedy)


def _authentication_error(code: str, cause: str, remedy: str, *types: ErrorType) -> KnownError:
    return KnownError(code, types or ("authentication_error",), cause, remedy)


def _relay_error(code: str, cause: str, remedy: str = _RETRY_REMEDY) -> KnownError:
    return KnownError(code, ("relay_unavailable",), cause, remedy)


def _store_error(code: str, cause: str, remedy: str = _RETRY_REMEDY) -> KnownError:
    return KnownError(code, ("pinner_unavailable",), cause, remedy)


def _uncoded_error(kind: ErrorType, cause: str, remedy: str) -> KnownError:
    return KnownError(None, (kind,), cause, remedy)


# Errors without a code, by status or type, as routes declare them.
UNCODED_ERRORS: Final[Mapping[int | str, KnownError]] = {
    400: _uncoded_error(
        "invalid_request_error",
        "a field, parameter or header is missing or malformed, or the request is not valid HTTP; `message` names"
        " all faults, `param` the first",
        "correct the faults that `message` names",
    ),
    404: _uncoded_error(
        "not_found", "the object does not exist, or belongs to another owner", "check the id and its owner"
    ),
    405: _uncoded_error(
        "invalid_request_error", "the path does not support this method", "use a method of the header `allow`"
    ),
    408: _uncoded_error(
        "invalid_request_error", "the body did not arrive in time", "send the body faster, or send a smaller one"
    ),
    409: _uncoded_error(
        "invalid_request_error",
        "the contract reverted with an unknown error; `message` has the revert data",
        "report it to the operator",
    ),
    416: _uncoded_error(
        "invalid_request_error", "the requested range is outside the file", "request a range within `content-range`"
    ),
    431: _uncoded_error(
        "invalid_request_error", "the request head is over 16 KiB or 100 headers", "send fewer or shorter headers"
    ),
    500: _uncoded_error(
        "internal_error", "an unexpected failure of the coordinator", "report the `x-request-id` to its operator"
    ),
    505: _uncoded_error("invalid_request_error", "the HTTP version is neither 1.0 nor 1.1", "use HTTP/1.1"),
    "busy": _uncoded_error(
        "busy",
        "too many requests by this caller or for this job or provider, or a wallet's gas or storage budget is used up",
        "send the same request again after `retry-after` seconds",
    ),
    "not_ready": _uncoded_error(
        "not_ready",
        "the index is behind the chain, or the database does not answer",
        "send the request again in a second",
    ),
    "chain_unreachable": _uncoded_error("chain_unreachable", "the coordinator's node does not answer", _RETRY_REMEDY),
    "invalid_op_signature": _uncoded_error(
        "invalid_op_signature", "`signature` does not recover to a registered provider's wallet", _SIGN_REMEDY
    ),
    RECEIPT_TIMEOUT: _uncoded_error(
        "receipt_timeout",
        "the transaction was sent but not mined within 60 s; `code` is its hash",
        "poll the route that `message` names: the transaction may still be mined. A 504 of a proxy has neither this"
        " `error.type` nor `x-svc-retryable`: read the object, and send the same request again if nothing changed",
    ),
}

_ERRORS_WITH_CODE: Final = (
    # Orders.
    _invalid_request("cap_overflow", "the cap does not fit 128 bits", "lower rates or units"),
    _invalid_request("invalid_order_signature", "`signature` does not recover to `owner`", _SIGN_REMEDY),
    _invalid_request(
        "container_without_payment", "the request has a container but no `auth_sig`", "send both or neither"
    ),
    _invalid_request(
        "container_required",
        "the request has `auth_sig` but no container",
        "send `container`, or `container_cid` of an upload",
    ),
    _invalid_request("container_ambiguous", "the request has both `container` and `container_cid`", "send one of them"),
    _invalid_request(
        "invalid_payment_signature",
        "`auth_sig` is not a signature of `owner` for a payment of `amount`",
        "sign the quote's `authorization` unchanged",
    ),
    _invalid_request(
        "payer_has_code",
        "the owner is a contract, or an account that delegates to one",
        "pay from an account without code",
    ),
    _invalid_request(
        "unknown_container",
        "`container_cid` is not an unexpired `input` upload of the owner",
        "upload the container again; an unused upload expires after 300 s",
    ),
    _invalid_request("too_short", "the container has fewer than 122 bytes", "send the complete container"),
    _invalid_request("bad_version", "the container's first byte is not 1", "seal the payload in container version 1"),
    _invalid_request(
        "commitment_mismatch", "the container does not reproduce `c`", "send the container that the order commits to"
    ),
    # Sessions.
    _authentication_error(
        "invalid_session", "the bearer token is missing, malformed or expired", "open a session: GET /auth/nonce"
    ),
    _authentication_error(
        "invalid_signature",
        "the signature is malformed, or by another wallet",
        _SIGN_REMEDY,
        "authentication_error",
        "invalid_op_signature",
    ),
    _authentication_error(
        "not_registered",
        "the wallet does not belong to a registered provider",
        "call register() of the provider registry; to poll, open a session with role `provider`",
        "authentication_error",
        "invalid_op_signature",
    ),
    # Files and batches.
    _invalid_request(
        "body_too_large",
        "the body is over the route's limit",
        "send a smaller body; upload containers and results with POST /v1/files",
    ),
    _invalid_request("file_too_large", "the file is over the operator's limit (MAX_BLOB_BYTES)", "send a smaller file"),
    _invalid_request(
        "invalid_purpose",
        "`purpose` is not input, result or batch",
        "send one of these, in a form field before the file",
    ),
    _invalid_request("empty_file", "the file is empty, or all its lines are blank", "send a file with content"),
    _invalid_request("too_many_lines", "a batch file has over 50,000 lines", "split the file into several batches"),
    _invalid_request("bad_container", "the upload is not a sealed container", "send the sealed container unchanged"),
    _invalid_request("invalid_endpoint", "`endpoint` is not /v1/responses or /v1/embeddings", "send one of them"),
    _invalid_request("invalid_completion_window", "`completion_window` is not 1h or 24h", "send one of them"),
    _invalid_request(
        "invalid_input_file",
        "`input_file_id` is not an unexpired `batch` upload of this address",
        "upload the lines again; an unused upload expires after 300 s",
    ),
    _invalid_request(
        "idempotency_key_reused",
        "another batch was created with this key and a different body",
        "use a new key, or send the same body as before",
    ),
    _invalid_request(
        "batch_not_cancellable", "the batch or all its lines have ended", "read the batch for its results"
    ),
    # Webhooks.
    _invalid_request("webhooks_unavailable", "this coordinator sends no webhooks", "read the event stream, or poll"),
    _invalid_request("too_many_webhooks", "the wallet already has ten endpoints", "remove an endpoint"),
    _invalid_request(
        "webhooks_need_funds",
        "the wallet has no tokens and no settled job",
        "fund the wallet, or read the event stream",
    ),
    _invalid_request(
        "webhook_disabled", "the endpoint is disabled and gets no messages", "remove the endpoint and add it again"
    ),
    # Ops and asks.
    _invalid_request(
        "result_required", "a settle has no result, or an empty result", "send `result`, or `result_cid` of an upload"
    ),
    _invalid_request("result_ambiguous", "the request has both `result` and `result_cid`", "send one of them"),
    _invalid_request(
        "unknown_result",
        "`result_cid` is not an unexpired `result` upload of this session's address",
        "upload the result again; an unused upload expires after 300 s",
    ),
    _authentication_error(
        "provider_mismatch", "the signer operates another provider", "use the signer's own provider id"
    ),
    _invalid_request(
        "stale_snapshot",
        "`signed_at` is not newer than the provider's latest snapshot",
        "sign with a newer `signed_at`",
    ),
    _invalid_request(
        "superseded",
        "the chain already has a newer snapshot",
        "read GET /evm/asks; to change it, sign a newer snapshot",
    ),
    # The escrow.
    _invalid_request("escrow_unavailable", "this coordinator hosts no escrow", "designate a provider in the order"),
    _invalid_request(
        "escrow_handover_disabled", "this escrow's keys belong to its operator and are never handed over", "none"
    ),
    KnownError("escrow_key_unminted", ("not_ready",), "the escrow has not received its keys yet", _RETRY_REMEDY),
    _invalid_request(
        "stale_issued_at",
        "`issued_at` is not within 600 s of the coordinator's clock",
        "set your clock, sign again with a new `issued_at`",
    ),
    _invalid_request(
        "wrap_mismatch",
        "`seed_wrap` and `ct_hash` do not reproduce the job's commitment",
        "take both from the job's container",
    ),
    _invalid_request(
        "unseal_failed", "no key of this escrow opens `seed_wrap`", "fail the job within 300 s of its claim"
    ),
    _authentication_error(
        "wrong_wallet", "the signature is not by the wallet that claimed the job", "sign with that wallet"
    ),
    KnownError("no_claim", ("not_found",), "the chain has no such job", "check the job id"),
    _invalid_request("not_claimed", "the job is not claimed, or has ended", "claim it first, or wait for the claim"),
    # Tabs.
    KnownError("unknown_job", ("not_found",), "the index has no such job", "check the job id, or wait for its block"),
    _authentication_error(
        "not_party",
        "the session belongs neither to the job's owner nor to its provider",
        "sign in as the owner, or as the provider with role `provider`",
    ),
    KnownError(
        "escrow_key_lost",
        ("not_found",),
        "the job is sealed to a key that no instance has any more",
        "fail the job within 300 s of its claim",
    ),
    _invalid_request("bad_binding", "the evidence is for another channel", "create evidence for `channel_pubkey`"),
    _invalid_request(
        "debug_evidence",
        "the operator of the requesting instance can read its memory",
        "request from an instance without debug access",
    ),
    _invalid_request(
        "stale_release",
        "the requesting instance runs an older release than the instance with the keys",
        "update the requesting instance",
    ),
    _authentication_error(
        "bad_operator_signature", "`operator_signature` is not a valid signature", "sign HandoverAuth"
    ),
    _authentication_error(
        "operator_not_authorized",
        "the signer is not an operator of this escrow",
        "sign with an OPERATOR_KEY that both instances have",
    ),
    _invalid_request(
        "not_allowlisted", "the instance's measurement is not on the allowlist", "ask the admin to list it"
    ),
    _invalid_request("tombstoned", "the instance's measurement is withdrawn", "run another build"),
    # Models.
    KnownError("model_not_found", ("not_found",), "there is no model of this name", "use a name from GET /v1/models"),
    # The coordinator's account, its node, its store.
    _relay_error("relayer_funds", "the coordinator's account has too little native coin for gas"),
    _relay_error("nonce_conflict", "another transaction of the coordinator's account used the nonce"),
    _relay_error("rpc_internal", "the coordinator's node failed"),
    _relay_error("rate_limited", "the coordinator's node limits its requests"),
    _relay_error("endpoint_refused", "the coordinator's node rejects the transaction"),
    _relay_error("relay_queue_full", "the queue of transactions is full"),
    _relay_error("relay_queue_timeout", "the transaction waited too long in the queue, and was not sent"),
    _relay_error("config_read", "fees or gas price could not be read from the chain"),
    _relay_error("payer_code_read", "models, windows or the payer could not be read from the chain"),
    _relay_error("provider_id_read", "the wallet's provider id could not be read from the chain"),
    _relay_error("registry_floor_read", "fees, or the time of the latest asks, could not be read from the chain"),
    _relay_error("claim_simulate_read", "the claim could not be simulated on the chain"),
    _relay_error("job_read", "the job could not be read from the chain, or its claim is not deep enough yet"),
    _relay_error("allowlist_status_read", "the allowlist could not be read from the chain"),
    _relay_error("publication_skipped", "the transaction was mined but published nothing"),
    _store_error("store_unavailable", "the object store does not answer"),
    _store_error("store_rejected", "the object store refused the request"),
    _store_error(
        "object_missing",
        "the object store no longer has the object",
        "retry later; if the error persists, the object is lost",
    ),
)

_ASKS_ROUTE_NOTE: Final = "PUT /evm/asks returns 400 with `param`"

ERRORS_BY_CODE: Final[Mapping[str, KnownError]] = {
    error.code: error for error in _ERRORS_WITH_CODE if error.code is not None
}

# Codes of batch lines that did not settle. A line may also have a code of POST /v1/jobs or of a contract.
LINE_ERRORS: Final[Mapping[str, tuple[str, str]]] = {
    "invalid_json": ("the line is not a JSON object", "write one object on each line"),
    "invalid_line": (
        "a field is missing or malformed, or the order is inside a `body`",
        "write all fields of POST /v1/jobs in the line",
    ),
    "endpoint_mismatch": ("`url` is not the batch's endpoint", "omit `url`, or set it to the batch's endpoint"),
    "order_expired": ("`expires_at` had passed when the line was processed", "sign a later `expires_at`"),
    "expiry_too_far": (
        "`expires_at` was more than a day ahead when the line was processed",
        "sign an earlier `expires_at`",
    ),
    "sla_too_long": ("`sla_secs` is above 86400", "sign a shorter window"),
    "insufficient_payment": (
        "`amount` was not cap + fee + gas_fee when the line was processed",
        "pay the amount of a new quote",
    ),
    "invalid_model": ("`model_id` was not an enabled model when the line was processed", "order another model"),
    "duplicate_job_id": ("another line has the same order", "none: the other line posts the order"),
    "cancelled": ("the batch was cancelled before the post, or the owner cancelled the job", "order again"),
    "provider_fail": ("the provider failed the job; the payment was refunded", "order again"),
    "reclaim": ("the provider missed the window; the payment was refunded", "order again"),
    "expired": (
        "the batch ended before the post, or no provider claimed the job in time",
        "order again, or at higher rates",
    ),
}


@attrs.frozen(slots=True)
class ContractError:
    """Contract errors with the same cause.

    `calls` lists the calls that return these errors, separated by commas. `every op` means all of `_SIGNED_OPS`.
    """

    names: tuple[str, ...]
    calls: str
    cause: str
    remedy: str

    def is_returned_by(self, call: str) -> bool:
        return call in {
            name for each in self.calls.split(", ") for name in (_SIGNED_OPS if each == "every op" else [each])
        }


_SIGNED_OPS: Final = ("claim", "settle", "fail", "cancel", "set_identity", "request_capacity")
PROVIDER_OPS: Final = ("claim", "settle", "fail", "set_identity", "request_capacity")

CONTRACT_ERRORS: Final = (
    ContractError(
        ("DuplicateJob",),
        "post",
        "this owner has posted or discarded this `c`",
        "read the job, or seal again for a new `c`",
    ),
    ContractError(
        ("ModelNotEnabled",),
        "post",
        "the market does not accept the model; POST /v1/jobs usually returns 400 with `param` `model_id`, a batch"
        " line `invalid_model`",
        "use an `enabled` model (GET /v1/models)",
    ),
    ContractError(
        ("SlaNotAllowed",),
        "post",
        "the market does not accept the window; POST /v1/jobs usually returns 400 with `param` `sla_secs`",
        "use one of `windows` (GET /evm/chain)",
    ),
    ContractError(("OrderExpired",), "post", "`expiresAt` has passed", "sign a later `expiresAt`"),
    ContractError(("ExpiryTooFar",), "post", "`expiresAt` is more than a day ahead", "sign an earlier `expiresAt`"),
    ContractError(("CapOverflow",), "post", "the cap does not fit 128 bits", "lower rates or units"),
    ContractError(("WrongAmount",), "post", "the amount is not cap + fee + gas_fee", "request a new quote"),
    ContractError(
        ("InvalidOrderSignature",),
        "post",
        "the signature is not the owner's over these values in this domain",
        "compare your values with the worked order",
    ),
    ContractError(
        ("InvalidPaymentSignature",),
        "post, claim",
        "the signature is not the owner's over these values in this domain",
        "compare your values with the worked order",
    ),
    ContractError(
        ("PayerHasCode",), "post, claim", "the owner is a contract or delegates to one", "pay from a plain account"
    ),
    ContractError(("AuthorizationUsed",), "post", "the payment's nonce is used or cancelled", "seal and order again"),
    ContractError(
        ("InsufficientBalance",),
        "post",
        "the owner's balance is below `amount` plus its other open orders",
        "fund the owner",
    ),
    ContractError(
        ("InvalidCid",), "post, settle", "the content id is empty or longer than 128 bytes", "upload it again"
    ),
    ContractError(
        ("NotRelayer",),
        "post, claim, settle",
        "the coordinator's account lacks the relayer role",
        "report it to the operator",
    ),
    ContractError(("EnforcedPause",), "post, claim", "the market is paused", "wait"),
    ContractError(
        ("UnknownJob",),
        "claim, settle, fail, cancel, reclaim",
        "the registry has no job with these terms",
        "check the job id",
    ),
    ContractError(("NotOpen",), "claim", "the job is claimed, ended or expired", "do not claim this job"),
    ContractError(
        ("UnknownProvider",),
        "claim, set_identity, request_capacity, asks",
        "the signer is not registered",
        "call `register()`",
    ),
    ContractError(
        ("NotListed", "ModelNotAllowed"),
        "claim",
        "the provider is not listed, the model is not allowed for it, or the model is disabled",
        "ask the admin",
    ),
    ContractError(("NotDesignated",), "claim", "the job is designated to another provider", "do not claim this job"),
    ContractError(("AtCapacity",), "claim", "`active_jobs` has reached `capacity`", "end a job first"),
    ContractError(("PaymentRefused",), "claim", "the token refused the payment", "do not claim this job"),
    ContractError(
        ("PaymentShort",),
        "claim",
        "after the payment, the registry would hold less than it owes",
        "do not claim this job",
    ),
    ContractError(("EscrowFull",), "claim", "the sum of all payments does not fit 128 bits", "wait"),
    ContractError(("TokenUnreadable",), "post, claim", "a read of the token failed", "wait"),
    ContractError(("WithdrawalRefused",), "withdraw", "the token refused the transfer", "try again later"),
    ContractError(
        ("StaleOp",),
        "every op",
        "`issued_at` is outside its limits",
        "set your clock, sign again with a new `issued_at`",
    ),
    ContractError(
        ("InvalidSignature",),
        "every op, asks",
        "the signature does not have 65 bytes, a low s and a v of 27 or 28",
        "encode the signature in this form",
    ),
    ContractError(
        ("NotClaimed",),
        "settle, fail, reclaim",
        "the job is open or has ended",
        "read the job: nothing to do if you settled it (`state` 2); claim it again if `state` is 0; otherwise drop it",
    ),
    ContractError(
        ("NotTheClaimer",), "settle, fail", "another provider claimed the job", "do not settle or fail this job"
    ),
    ContractError(("SlaExpired",), "settle", "the window has ended", "none: any account may reclaim the job"),
    ContractError(("SlaNotExpired",), "reclaim", "the window is still open", "wait"),
    ContractError(("TooManyUnits",), "settle", "`completionTok` is above `unitsOut`", "settle at most `unitsOut`"),
    ContractError(("NotCancellable",), "cancel", "the job is claimed", "wait until the job has ended"),
    ContractError(
        ("NotTheOwner",),
        "cancel",
        "the cancellation is not signed by the owner, or the job does not exist",
        "sign with the owner's wallet",
    ),
    ContractError(("NothingToWithdraw",), "withdraw", "the account has no credit", "none"),
    ContractError(("EvidenceTooLong",), "set_identity", "the evidence is longer than 32,768 bytes", "publish less"),
    ContractError(
        ("AlreadyRegistered",),
        "register, acceptOperator",
        "the account already operates a provider",
        "use that provider",
    ),
    ContractError(
        ("NotProposed",),
        "acceptOperator",
        "the sender was not proposed as operator",
        "ask the provider's operator to propose it",
    ),
    ContractError(("JobsActive",), "deregister", "the provider has a claimed job", "end the job first"),
    ContractError(("StaleSnapshot",), "asks", "`signed_at` is not newer than the last snapshot's", "sign again"),
    ContractError(
        ("TooFarAhead",), "asks", f"`signed_at` is more than an hour ahead; {_ASKS_ROUTE_NOTE}", "sign again"
    ),
    ContractError(
        ("TooManyQuotes",), "asks", f"the snapshot has more than 64 quotes; {_ASKS_ROUTE_NOTE}", "send fewer"
    ),
    ContractError(
        ("QuotesNotAscending",),
        "asks",
        f"the quotes are not in ascending order of model and window; {_ASKS_ROUTE_NOTE}",
        "sort the quotes, and send each model and window once",
    ),
    ContractError(
        ("ProviderMismatch",), "asks", "the signer operates another provider", "use the signer's own provider id"
    ),
)


def contract_error_names(*calls: str) -> tuple[str, ...]:
    """Return the names of the errors that these calls can return."""
    return tuple(name for error in CONTRACT_ERRORS if any(map(error.is_returned_by, calls)) for name in error.names)


def declared_error(status: int, name: str | None) -> KnownError:
    """Return the error that a route declares.

    `name` is the code of the error, or its type if the error has no code. If `name` is None, the status selects the
    error.
    """
    if name is None:
        return UNCODED_ERRORS[status]
    if name in UNCODED_ERRORS:
        return UNCODED_ERRORS[name]
    if name in ERRORS_BY_CODE:
        return ERRORS_BY_CODE[name]
    known = next(each for each in CONTRACT_ERRORS if name in each.names)
    return KnownError(name, ("invalid_request_error",), known.cause, known.remedy)
